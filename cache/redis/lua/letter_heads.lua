#!lua flags=no-writes
-- Why dead letters were given up, the newest first, without what they hold: their bodies may be large.
--
-- KEYS[1]  the stream's dead letters
-- ARGV[1]  where to begin, as XREVRANGE takes it; ARGV[2] how many at most
-- returns  {id, {field, value, ...}} of each
local named = {command = true, route = true, aggregate = true, sequence = true}
local found = {}
for each, letter in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  local fields, kept, size = letter[2], {}, 0
  for at = 1, #fields, 2 do
    local name = fields[at]
    if named[name] == nil then
      named[name] = name:sub(1, 5) == 'dead.'
    end
    if named[name] then
      kept[size + 1], kept[size + 2] = name, fields[at + 1]
      size = size + 2
    end
  end
  found[each] = {letter[1], kept}
end
return found
