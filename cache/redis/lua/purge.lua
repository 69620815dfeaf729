#!lua flags=allow-oom
-- Remove a record that was looked at, if it is still that attempt's.
--
-- KEYS[1]  the record
-- ARGV[1]  the token and the attempt's number, as they are stored
-- ARGV[2]  "1": also while the attempt is in flight
-- returns  1   removed
--          0   there is no record, any more
--          -1  in flight, and not forced
--          -3  another attempt by now
--
-- allow-oom, because it frees memory.
local held = redis.call('GETRANGE', KEYS[1], 0, 54)
if held == '' then
  return 0
end
if held:sub(3, 18) .. held:sub(35, 38) ~= ARGV[1] then
  return -3
end
-- By the record's own retention, as everywhere: a lapsed lease is nobody's.
local in_flight = held:sub(2, 2) == 'I' and redis.call('PTTL', KEYS[1]) > struct.unpack('>I8', held, 39)
if in_flight and ARGV[2] ~= '1' then
  return -1
end
redis.call('DEL', KEYS[1])
return 1
