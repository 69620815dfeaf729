-- `fields`: a table of what Redis gives as a list, each name followed by its value.
local function fields(list)
  local read = {}
  for i = 1, #list, 2 do
    read[list[i]] = list[i + 1]
  end
  return read
end
