#!lua flags=no-writes
-- Why dead letters were given up, the newest first, without what they hold: their bodies may be large.
--
-- KEYS[1]  the stream's dead letters
-- ARGV[1]  where to begin, as XREVRANGE takes it; ARGV[2] how many at most
-- returns  {id, {field, value, ...}} of each
local named = {command = true, route = true, aggregate = true, sequence = true}
local found = {}
for _, letter in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  local fields, kept = letter[2], {}
  for at = 1, #fields, 2 do
    if fields[at]:sub(1, 5) == 'dead.' or named[fields[at]] then
      kept[#kept + 1] = fields[at]
      kept[#kept + 1] = fields[at + 1]
    end
  end
  found[#found + 1] = {letter[1], kept}
end
return found
