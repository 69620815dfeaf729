-- Have a dead letter's command processed anew: append it to its stream again, and take the letter away.
--
-- KEYS[1]  the stream
-- KEYS[2]  the stream's dead letters
-- ARGV[1]  the letter's id
-- ARGV[2]  a note of who retried it, which stays with the entry
-- returns  the id of the new entry; nil: there is no such letter, and nothing was written; a NOGROUP error: the consumer
--          that had given it up has no group, so the others would take the entry out before it is read
--
-- What described its death goes, and becomes `attempts_before` (so that its attempts count from here on) and `consumer`
-- (the one that had given it up: the others have processed it, and their records may have expired since).

-- include fields.lua
local stream, dead, id = KEYS[1], KEYS[2], ARGV[1]
local letter = redis.call('XRANGE', dead, id, id)[1]
if not letter then
  return false
end

local entry, attempts, consumer = {}, '0', ''
for i = 1, #letter[2], 2 do
  local name, value = letter[2][i], letter[2][i + 1]
  if name == 'dead.attempts' then
    attempts = value
  elseif name == 'dead.consumer' then
    consumer = value
  elseif name:sub(1, 5) ~= 'dead.' and name ~= 'attempts_before' and name ~= 'consumer' and name ~= 'retried' then
    entry[#entry + 1] = name
    entry[#entry + 1] = value
  end
end

local is_read = consumer == ''
for _, group in ipairs(redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'GROUPS', stream) or {}) do
  is_read = is_read or fields(group)['name'] == consumer
end
if not is_read then
  return redis.error_reply('NOGROUP nobody reads the stream as the consumer that gave the letter up')
end

for _, part in ipairs({'attempts_before', attempts, 'consumer', consumer, 'retried', ARGV[2]}) do
  entry[#entry + 1] = part
end
local new = redis.call('XADD', stream, '*', unpack(entry))
redis.call('XDEL', dead, id)
return new
