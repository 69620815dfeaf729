#!lua flags=no-writes
-- A record and what it has left to live, as of one instant.
--
-- KEYS[1]  the record
-- returns  nil, or {bytes, pttl} with pttl in ms (-1: it has no expiry, so it is damaged)
--
-- no-writes, so that Redis runs it while it refuses writes.
local record = redis.call('GET', KEYS[1])
if not record then
  return nil
end
return {record, redis.call('PTTL', KEYS[1])}
