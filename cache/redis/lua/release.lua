#!lua flags=allow-oom
-- Undo an attempt, if it still owns the record: back to what it found.
--
-- KEYS[1]  the record
-- ARGV[1]  our token
-- returns  1  released
--          0  the record does not carry our token in flight, nothing was written
--
-- Found absent: deleted. Found failed or unknown: that state, attempt number and remaining time again, under a dead token
-- (its outcome was recorded) and without a response (the takeover did not keep it). Found lapsed: its owner's again, lapsed as
-- it was, since that owner may live and still record what it knows.
-- allow-oom, because it frees memory, or needs no more than it found.
local held = redis.call('GETRANGE', KEYS[1], 0, 93)
if #held < 55 or held:byte(1) ~= 1 or held:sub(2, 2) ~= 'I' or held:sub(3, 18) ~= ARGV[1] then
  return 0
end
local found = held:sub(47, 47)
if found == 'A' then
  redis.call('DEL', KEYS[1])
  return 1
end
local attempt = struct.unpack('>I4', held, 35) - 1
local found_ms = math.max(1, (struct.unpack('>I8', held, 48))) -- in parentheses: it also returns where it stopped
local restored = held:sub(1, 1) .. found .. string.rep('\0', 16) .. held:sub(19, 34)
  .. struct.pack('>I4', attempt) .. string.rep('\0', 4)
local apart = 56
if found == 'L' then
  if #held < 88 then
    return 0
  end
  restored = held:sub(1, 1) .. 'I' .. held:sub(56, 71) .. held:sub(19, 34) .. struct.pack('>I4', attempt) .. held:sub(72, 88)
  apart = 89
end
if held:sub(apart, apart + 5) == '{"a":1' then
  restored = restored .. '{"a":1}' -- still a submission: whoever retries may take it over as one
end
redis.call('SET', KEYS[1], restored, 'PX', found_ms)
return 1
