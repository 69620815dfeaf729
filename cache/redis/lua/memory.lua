-- How much memory is used where a stream is, and how many entries the stream has.
--
-- KEYS[1]  the stream
-- returns  {bytes used, bytes that may be used (0: as many as there are), entries}
--
-- Where Redis evicts, it says 0 as well: it refuses nothing then. INFO takes longer than appending does, so this runs
-- now and then, and not for each submission.
local info = redis.call('INFO', 'memory')
local most = tonumber(info:match('\nmaxmemory:(%d+)')) or 0
if info:match('\nmaxmemory_policy:([%w-]+)') ~= 'noeviction' then
  most = 0
end
return {tonumber(info:match('\nused_memory:(%d+)')), most, redis.call('XLEN', KEYS[1])}
