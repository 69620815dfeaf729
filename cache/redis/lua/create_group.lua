#!lua flags=allow-oom
-- Make a consumer group that reads from the first entry on, and the stream with it.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group
-- returns  1  made
--          0  it was there
--
-- allow-oom, because on a full server somebody has to begin to read what filled it.
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if not made.err then
  return 1
end
if made.err:sub(1, 9) == 'BUSYGROUP' then
  return 0
end
return made
