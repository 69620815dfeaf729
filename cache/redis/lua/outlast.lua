#!lua flags=allow-oom
-- Let a submission live for at least as long as something else.
--
-- KEYS[1]  the submission's record
-- ARGV[1]  the bytes of the accepted submission, written where there is no record any more
-- ARGV[2]  ms to live at least
-- returns  ms that it lives
--          0   there is another record: of another payload, of a request that was executed at once, or without an outcome
--          -1  it is in flight: its acceptance is just being recorded, or its gateway has died
local record = redis.call('GET', KEYS[1])
if not record then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return tonumber(ARGV[2])
end
if record:sub(19, 34) ~= ARGV[1]:sub(19, 34) or record:byte(1) ~= ARGV[1]:byte(1) then
  return 0
end
if record:sub(2, 2) == 'I' then
  return -1
end
-- The mark of a submission is the first member of its response's JSON head (see codec.py).
if record:sub(2, 2) ~= 'S' or not record:sub(43, 80):find('{"a":1', 1, true) then
  return 0
end
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(ARGV[2])
end
return left
