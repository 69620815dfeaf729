-- `groups_of` and `needed`: whether a group still needs an entry of the stream, which it has not read or not acknowledged.
-- include below.lua
-- include fields.lua

-- The groups of a stream as of now, with their members by name.
local function groups_of(stream)
  local groups = {}
  for at, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    groups[at] = fields(group)
  end
  return groups
end

-- Whether one of `groups` needs the entry `id`, which the group `own` has just acknowledged; it may have been set back.
local function needed(stream, groups, own, id)
  for _, group in ipairs(groups) do
    local name = group['name']
    if below(group['last-delivered-id'], id)
      or (name ~= own and #redis.call('XPENDING', stream, name, id, id, 1) > 0) then
      return true
    end
  end
  return false
end
