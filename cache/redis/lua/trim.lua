-- `trim` removes what no group of the stream KEYS[1] needs any more, and returns how many entries went.
-- include below.lua
-- include fields.lua

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
    local field = fields(group)
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
