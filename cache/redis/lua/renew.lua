#!lua flags=allow-oom
-- Renew the lease of a record in flight, lapsed or not, if it still carries our token.
--
-- KEYS[1]  the record
-- ARGV[1]  our token
-- ARGV[2]  lease, ms
-- returns  1  renewed
--          0  it is not ours any more, or not in flight, or gone
--
-- The retention that is added comes from the record: it is what everybody judges the lease by.
-- allow-oom, because nothing grows, and a lease lost to a full server would make a running attempt read as unknown.
local held = redis.call('GETRANGE', KEYS[1], 0, 45)
if #held < 46 or held:byte(1) ~= 1 or held:sub(2, 2) ~= 'I' or held:sub(3, 18) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2] + struct.unpack('>I8', held, 39))
