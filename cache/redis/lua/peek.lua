#!lua flags=no-writes
-- A record without its response's body, for listing many of them.
--
-- KEYS[1]  the record
-- returns  nil, or {bytes, pttl, size}: as get.lua does, cut off where the body begins, and the bytes of the whole
local record = redis.call('GETRANGE', KEYS[1], 0, 1023)
if record == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  return nil
end
if #record >= 42 and record:sub(2, 2) ~= 'I' then
  local head = struct.unpack('>I4', record, 39)
  if head > 0 then
    record = redis.call('GETRANGE', KEYS[1], 0, 41 + head)
  end
end
return {record, redis.call('PTTL', KEYS[1]), redis.call('STRLEN', KEYS[1])}
