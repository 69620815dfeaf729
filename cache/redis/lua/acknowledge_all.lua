#!lua flags=allow-oom
-- Acknowledge entries of a command stream that were processed.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group
-- ARGV[2]  an entry's id, then the next one's...: some hundreds at most
-- returns  how many there were; the others are not pending here: somebody has acknowledged them before, and nothing was written
--
-- An entry that no group needs any more goes at once (acknowledge.lua says why). allow-oom, because that frees memory.
-- include needed.lua
local stream, group = KEYS[1], ARGV[1]
local acknowledged = {}
for i = 2, #ARGV do
  if redis.call('XACK', stream, group, ARGV[i]) == 1 then
    acknowledged[#acknowledged + 1] = ARGV[i]
  end
end
if #acknowledged == 0 then
  return 0
end
local groups, gone = groups_of(stream), {}
for _, id in ipairs(acknowledged) do
  if not needed(stream, groups, group, id) then
    gone[#gone + 1] = id
  end
end
if #gone > 0 then
  redis.call('XDEL', stream, unpack(gone))
end
return #acknowledged
