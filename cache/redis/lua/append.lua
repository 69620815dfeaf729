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
local TRIM_EVERY = 100

-- include trim.lua

if #ARGV == 1 then
  return trim()
end

local limit = tonumber(ARGV[1])
local length = redis.call('XLEN', KEYS[1])
if length >= limit or length % TRIM_EVERY == TRIM_EVERY - 1 then
  length = length - trim()
end
if length >= limit then
  return false
end
return redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
