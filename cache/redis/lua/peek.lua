#!lua flags=no-writes
-- Records without their responses' bodies, for listing many of them.
--
-- KEYS     the records
-- returns  for each nil, or {bytes, pttl, size}: as get.lua does, cut off where the body begins, and the bytes of the whole;
--          or an error, where what is there is no record: the others are read all the same
local found = {}
for at, key in ipairs(KEYS) do
  local record = redis.pcall('GETRANGE', key, 0, 1023)
  if type(record) == 'table' then
    found[at] = record
  elseif record == '' and redis.call('EXISTS', key) == 0 then
    found[at] = false
  else
    if #record >= 42 and record:sub(2, 2) ~= 'I' then
      local head = struct.unpack('>I4', record, 39)
      if head > 982 then
        record = redis.call('GETRANGE', key, 0, 41 + head)
      elseif head > 0 then
        record = record:sub(1, 42 + head)
      end
    end
    found[at] = {record, redis.call('PTTL', key), redis.call('STRLEN', key)}
  end
end
return found
