-- `trim` removes what no group of the stream KEYS[1] needs any more, and returns how many entries went.
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

-- The lowest id that can come after this one. Where a Lua number could not hold it: the id itself, so that one entry too
-- many stays.
local function after(id)
  local ms, seq = id:match('(%d+)-(%d+)')
  if #seq > 15 then
    return id
  end
  return ms .. '-' .. string.format('%.0f', tonumber(seq) + 1)
end

-- The lowest id that some group has not read or not acknowledged; nil without a group, for then all of it is still to come.
local function lowest_needed()
  local lowest
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local field = {}
    for i = 1, #group, 2 do
      field[group[i]] = group[i + 1]
    end
    local needed = after(field['last-delivered-id'])
    local pending = redis.call('XPENDING', KEYS[1], field['name'])
    -- A group that was set back needs more than what is pending there.
    if pending[1] > 0 and below(pending[2], needed) then
      needed = pending[2]
    end
    if not lowest or below(needed, lowest) then
      lowest = needed
    end
  end
  return lowest
end

local function trim()
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
  end
  local lowest = lowest_needed()
  return lowest and redis.call('XTRIM', KEYS[1], 'MINID', lowest) or 0
end
