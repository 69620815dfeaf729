-- Append a command to its stream, or only trim what no group needs any more.
--
-- KEYS[1]  the stream
-- ARGV[1]  how many entries it may hold
-- ARGV[2]  a field, then its value, then the next field...; nothing: only trim
-- returns  the new entry's id, or nil: the stream is full, and nothing was written
--          where it was only to trim: how many entries went
--
-- No shebang, on purpose: while Redis is out of memory it refuses a whole script that may append, but it lets a script
-- without flags run up to its first such command. So trimming, which frees memory, still works.
--
-- The functions that trim are made where they are needed alone: to make them takes a twentieth of an append.
local TRIM_EVERY = 100
local limit = tonumber(ARGV[1])
local length = redis.call('XLEN', KEYS[1])
if length >= limit or length % TRIM_EVERY == TRIM_EVERY - 1 or #ARGV == 1 then
  -- include trim.lua
  local trimmed = trim()
  if #ARGV == 1 then
    return trimmed
  elseif length - trimmed >= limit then
    return false
  end
end
return redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
