#!lua flags=allow-oom
-- Keeps the entry of a process that is up, or removes it; those of processes whose time is over go.
--
-- KEYS[1]  the namespace's entries, a hash by the processes' names
-- KEYS[2]  their ends, a sorted set of these names by the instant (Unix ms, this server's clock)
-- ARGV[1]  the name; ARGV[2] its entry; ARGV[3] for how long, ms (0: it is removed); ARGV[4] how many there may be
-- returns  1  kept, or removed
--          0  there are so many already
--
-- allow-oom, because who is up has to be seen on a full server, too; it is bounded.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[4])) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
end
if ARGV[3] == '0' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 1
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
redis.call('PEXPIREAT', KEYS[1], last)
redis.call('PEXPIREAT', KEYS[2], last)
return 1
