#!lua flags=allow-oom
-- Acknowledge an entry of a command stream that is given up, with its dead letter. Or only trim the dead letters.
--
-- KEYS[1]  the stream
-- KEYS[2]  the stream's dead letters
-- KEYS[3]  the count of those that were trimmed
-- ARGV[1]  the group
-- ARGV[2]  the entry's id; an empty string: only trim
-- ARGV[3]  the command, where one letter is enough for all of its copies that died of the same attempts; else an empty string
-- ARGV[4]  the ms (Unix time) since when a copy's letter is of the same attempts
-- ARGV[5]  how many dead letters may be kept, at least 1
-- ARGV[6]  for how many ms each of them is kept
-- ARGV[7]  a field, then its value, then the next field...: what describes the entry's death
-- returns  {1, letters trimmed}  done
--          {0, letters trimmed}  it is not pending here: somebody has acknowledged it before, and nothing else was written
--
-- The letter is written before the acknowledgement: where Redis refuses it (its key is something else), the script ends there,
-- and the entry stays pending. allow-oom, because a full server must get rid of what fills it: a letter takes the entry's place.
--
-- An entry that no group needs any more goes at once. Trimming alone could not free what lies behind one that waits long
-- to be tried again, and the stream would fill up with what was processed.
--
-- Trimming comes in the same step as the letter that makes it necessary, and never takes that one. A letter that is
-- retried meanwhile was moved before (retry.lua) or is gone: never both, and never half. Many go in
-- pieces: a limit that was lowered must not stop the server.

-- include needed.lua
local LATEST = 1000  -- letters that are looked at for the one of another copy: it died just before
local MOST_FIELDS = 1000  -- unpack can't take any number of them, and no command of ours has more than a dozen
local TRIMMED_AT_ONCE = 1000
local DETAILS = 7  -- where what describes the death begins in ARGV
local stream, dead, trimmed, group, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

-- Take out the oldest letters that are too many, and then those that are too old; how many. A letter's id begins with the
-- time of its death. They are not read: their bodies may be large.
local function trim()
  local most, length = tonumber(ARGV[5]), redis.call('XLEN', dead)
  local gone = redis.call('XTRIM', dead, 'MAXLEN', math.max(most, length - TRIMMED_AT_ONCE))
  if length - gone <= most then
    local now = redis.call('TIME')
    local oldest = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) - tonumber(ARGV[6])
    gone = gone + redis.call('XTRIM', dead, 'MINID', string.format('%.0f', math.max(0, oldest)))
  end
  if gone > 0 then
    redis.call('INCRBY', trimmed, gone)
  end
  return gone
end

if id == '' then
  return {0, trim()}
end

if #redis.call('XPENDING', stream, group, id, id, 1) == 0 then
  return {0, 0}
end

-- Whether a copy of the command has its letter already, of the same consumer after as many attempts. No more letters are read
-- than came since then by this server's clock; it is by a worker's that a letter says when.
local function has_letter(command)
  local own = fields({unpack(ARGV, DETAILS)})
  for _, letter in ipairs(redis.call('XREVRANGE', dead, '+', ARGV[4], 'COUNT', LATEST)) do
    local field = fields(letter[2])
    if field['command'] == command and field['dead.consumer'] == own['dead.consumer']
      and field['dead.attempts'] == own['dead.attempts']
      and (tonumber(field['dead.at']) or 0) >= tonumber(ARGV[4]) then
      return true
    end
  end
  return false
end

local gone = 0
if not (ARGV[3] ~= '' and has_letter(ARGV[3])) then
  local letter = {}
  local entry = redis.call('XRANGE', stream, id, id)[1]
  for i, part in ipairs(entry and entry[2] or {}) do
    if i > 2 * MOST_FIELDS then
      break
    end
    letter[i] = part
  end
  for i = DETAILS, #ARGV do
    letter[#letter + 1] = ARGV[i]
  end
  redis.call('XADD', dead, '*', unpack(letter))
  gone = trim()
end

redis.call('XACK', stream, group, id)
if not needed(stream, groups_of(stream), group, id) then
  redis.call('XDEL', stream, id)
end
return {1, gone}
