-- `below`: whether one entry's id comes before another.
--
-- Ids are "ms-seq", 64 bits each: more than a Lua number holds exactly, so they are compared as decimal strings.
local function below(one, other)
  local ms, seq = one:match('(%d+)-(%d+)')
  local ms2, seq2 = other:match('(%d+)-(%d+)')
  if ms == ms2 then
    ms, ms2 = seq, seq2
  end
  return #ms < #ms2 or (#ms == #ms2 and ms < ms2)
end
