#!lua flags=allow-oom
-- Write the outcome of a submitted command's execution, and let its submission, which is in the same slot, live for at least so long.
--
-- KEYS[1]  the execution's record
-- KEYS[2]  the submission's
-- ARGV[1]  the bytes of the outcome, as complete.lua takes them
-- ARGV[2]  ms for the outcome to live
-- ARGV[3]  ms for the submission to live at least
-- returns  {1, ms that the submission lives, or what else outlast.lua returns}  recorded, now or earlier
--          {1, 0}  recorded; the submission's time is over, and nothing was written there
--          {0, 0}  somebody else owns the record, nothing was written
local function complete(KEYS, ARGV)
  -- include complete.lua
end
local function outlast(KEYS, ARGV)
  -- include outlast.lua
end

if complete(KEYS, ARGV) == 0 then
  return {0, 0}
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  return {1, 0}
end
return {1, outlast({KEYS[2]}, {ARGV[1], ARGV[3]})}
