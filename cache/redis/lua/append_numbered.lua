-- Append a command to its stream under the next number of the aggregate that it is about.
--
-- KEYS[1]  the stream
-- KEYS[2]  a hash beside it: of each aggregate its last number; of each command that was appended lately its note: the ms since 1970
--          from which it counts and a blank, where that is not the entry's time, and then the entry's id, a blank and the number
-- ARGV[1]  how many entries the stream may hold
-- ARGV[2]  the number that the aggregate is expected to have: 0 before its first, '*' for any but 0, '' whichever it is
-- ARGV[3]  how many ms old the command's note may be to count, a blank, and for how many ms notes are kept at least
-- ARGV[4]  the aggregate's field in the hash
-- ARGV[5]  the command's field in the hash, which is longer than any aggregate's; its first byte is as good as random
-- ARGV[6]  a field of the entry, then its value, then the next field...
-- returns  id, blank, number  the command is in the stream, from now on, or was before
--          a number           the aggregate's, which is another one than is expected: nothing was written
--          nil                the stream is full: nothing was written
--
-- What was appended before comes first: a command that has moved its aggregate on itself must not be refused for that. Number and
-- note are written in the step that appends: there is no number without an entry, and no entry without a number.
--
-- No shebang, as in append.lua: a Redis that is out of memory refuses the first command that takes any, and nothing was written.
-- What each step takes is counted by `scripts/bench append`. Functions are made where they are needed alone, which is seldom.
local TRIM_EVERY = 100
local SWEEPS, SWEPT = 3, 170 -- three of 256 appends look at so many fields: two for each that is added at most
local call = redis.call
local note = call('HGET', KEYS[2], ARGV[5])

if note then
  local now = call('TIME')
  local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
  if now_ms - note:match('%d+') <= tonumber(ARGV[3]:match('%d+')) then
    note = note:match('%d+%-%d+ %d+$')
    -- It counts from now on: whoever is answered by it may die of the next step as well.
    call('HSET', KEYS[2], ARGV[5], string.format('%.0f ', now_ms) .. note)
    return note
  end
end

local current = call('HGET', KEYS[2], ARGV[4]) or '0'
if ARGV[2] ~= '' and ARGV[2] ~= current and (ARGV[2] ~= '*' or current == '0') then
  return current
end

local limit = tonumber(ARGV[1])
local length = call('XLEN', KEYS[1])
if length >= limit or length % TRIM_EVERY == TRIM_EVERY - 1 then
  -- include trim.lua
  if length - trim() >= limit then
    return false
  end
end

local number = string.format('%.0f', current + 1)
local aggregate, command = ARGV[4], ARGV[5]
ARGV[4], ARGV[5] = 'sequence', number
note = call('XADD', KEYS[1], '*', unpack(ARGV, 4)) .. ' ' .. number
call('HSET', KEYS[2], aggregate, number, command, note)

-- Take out notes that are too old, some fields further each time; where the next time begins is in the field without a name.
if command:byte() < SWEEPS then
  local oldest = string.format('%.0f', note:match('%d+') - ARGV[3]:match(' (%d+)'))
  local cursor = (call('HGET', KEYS[2], '') or '0'):match('%d+')
  local found = call('HSCAN', KEYS[2], cursor, 'COUNT', SWEPT)
  local fields, old = found[2], {}
  for i = 1, #fields, 2 do
    -- Both begin with the 13 digits that a time has until 2286, and texts are compared faster than they are read.
    if #fields[i] == #command and fields[i + 1] < oldest then
      old[#old + 1] = fields[i]
    end
  end
  if #old > 0 then
    call('HDEL', KEYS[2], unpack(old))
  end
  -- Longer than what Redis packs into a list, in which each look would take the longer the more aggregates there are.
  call('HSET', KEYS[2], '', string.format('%-65s', found[1]))
end
return note
