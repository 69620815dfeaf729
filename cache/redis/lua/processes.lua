#!lua flags=no-writes
-- The entries of the processes that are up.
--
-- KEYS[1]  the namespace's entries, a hash by the processes' names
-- KEYS[2]  their ends, a sorted set of these names by the instant (Unix ms, this server's clock)
-- ARGV[1]  how many at most
-- returns  {entry, what it has left to live in ms, entry, ...}
--
-- no-writes, so that Redis runs it while it refuses writes.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = redis.call('ZRANGEBYSCORE', KEYS[2], now + 1, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local found = {}
for at = 1, #ends, 2 do
  local entry = redis.call('HGET', KEYS[1], ends[at])
  if entry then
    found[#found + 1] = entry
    found[#found + 1] = ends[at + 1] - now
  end
end
return found
