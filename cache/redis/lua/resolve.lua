#!lua flags=allow-oom
-- Write what an operator has found out about an attempt whose outcome nobody knows.
--
-- KEYS[1]  the record
-- ARGV[1]  the bytes of the outcome under a dead token (see codec.py), with the fingerprint and the attempt number of what was
--          looked at; "": the key is to be free
-- ARGV[2]  ms to live, where there are bytes
-- ARGV[3]  "1": also where the attempt is in flight
-- ARGV[4]  the attempt number that the operator has looked at, or "0": any
-- returns  1   resolved
--          0   there is no record
--          -1  in flight, and not forced
--          -2  its outcome is known: nothing is ever written over that
--          -3  another attempt by now
--          -4  damaged, or of another version
--          -5  what is held has another fingerprint or attempt number than the outcome: look again
--
-- The fingerprint and the attempt number stay. They can't be spliced in here, since the outcome is sealed with them; so they
-- are compared, and nothing can come between looking and writing. allow-oom, because an outcome that is known must be storable on a full server.
local held = redis.call('GETRANGE', KEYS[1], 0, 54)
if held == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local pttl = redis.call('PTTL', KEYS[1])
local state = held:sub(2, 2)
local least = state == 'I' and 55 or 42
if pttl < 0 or #held < least or held:byte(1) ~= 1 then
  return -4
end
if state == 'S' or state == 'F' then
  return -2
end
if state ~= 'I' and state ~= 'U' then
  return -4
end
if ARGV[4] ~= '0' and tonumber(ARGV[4]) ~= struct.unpack('>I4', held, 35) then
  return -3
end
-- By the record's own retention, as everywhere: a lapsed lease reads unknown and needs no force.
if state == 'I' and pttl > struct.unpack('>I8', held, 39) and ARGV[3] ~= '1' then
  return -1
end
if ARGV[1] == '' then
  redis.call('DEL', KEYS[1])
elseif ARGV[1]:sub(19, 38) ~= held:sub(19, 38) then
  return -5
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1
