#!lua flags=allow-oom
-- Write an attempt's outcome, if the attempt still owns the record.
--
-- KEYS[1]  the record
-- ARGV[1]  the bytes of the outcome, with the owner's token at its offset (see codec.py)
-- ARGV[2]  ms to live
-- returns  1  recorded: now, or by an earlier call with this token (then nothing is written: a reply was lost)
--          0  somebody else owns the record, nothing was written
--
-- An absent record is written too: it lapsed away while its owner lived on, and the outcome is known.
-- allow-oom, because an outcome that is known must be storable on a full server, or the effect would run again.
local outcome = ARGV[1]
local held = redis.call('GETRANGE', KEYS[1], 0, 17)
if held == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], outcome, 'PX', ARGV[2])
  return 1
end
if held:sub(3, 18) ~= outcome:sub(3, 18) or held:byte(1) ~= outcome:byte(1) then
  return 0
end
if held:sub(2, 2) == 'I' then
  redis.call('SET', KEYS[1], outcome, 'PX', ARGV[2])
end
return 1
