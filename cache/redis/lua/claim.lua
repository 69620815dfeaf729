-- Make the record ours, or return the one that is there.
--
-- KEYS[1]  the record
-- ARGV[1]  the bytes of a first attempt in flight with our token (see codec.py for the offsets)
-- ARGV[2]  ms to live: lease + retention
-- ARGV[3]  codes of the states that may be taken over: "", "F", "U" or "FU"
-- returns  1                  ours: there was no record, and there is now ARGV[1]
--          {1, bytes, pttl}   ours: taken over, or our own claim sent again
--          {0, bytes, pttl}   somebody else's: nothing was written
--
-- No shebang, on purpose: Redis refuses a whole script that may write while it refuses writes (OOM, MISCONF, too few
-- replicas), but it lets a script without flags run up to its first write. So a replay, which only reads, still works.
local record = redis.call('GET', KEYS[1])
if not record then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end

local pttl = redis.call('PTTL', KEYS[1])
local fresh = ARGV[1]
local stored = record:sub(2, 2)
local state = stored
local least = state == 'I' and 55 or 42
-- Whether it is what a record of this state looks like: it is sealed under the state's name, or is what a release has restored
-- (codec.py). A state that was damaged must not have a command executed again.
local function is_of(record, state)
  local apart, seal = record:sub(43), '"' .. state .. '":"%x+"}$'
  if state == 'I' then
    local found = record:sub(47, 47)
    if found == 'L' then
      return #record >= 88 and record:find('^[AFU]', 80) ~= nil and record:find(seal, 89) ~= nil
    end
    apart = record:sub(56)
    return found:find('^[AFU]') ~= nil and (apart == '' or apart == '{"a":1}' or apart:find(seal) ~= nil)
  end
  local head = struct.unpack('>I4', record, 39)
  if head > 0 then
    return record:sub(43, 42 + head):find(seal) ~= nil
  end
  if apart == '' or apart == '{"a":1}' then
    return record:sub(3, 18) == string.rep('\0', 16)
  end
  return apart:find(seal) ~= nil
end

-- Without an expiry, of another version, or cut short: damaged. The caller reports it, and it is never taken over.
if pttl < 0 or #record < least or record:byte(1) ~= fresh:byte(1) then
  return {0, record, pttl}
end

if state == 'I' then
  -- By the record's own retention it is found out when its lease was over, not by ours: gateways may be configured differently.
  if pttl > struct.unpack('>I8', record, 39) then
    if record:sub(3, 18) == fresh:sub(3, 18) then
      return {1, record, pttl}
    end
    return {0, record, pttl}
  end
  state = 'U'
end

if not ARGV[3]:find(state, 1, true) or record:sub(19, 34) ~= fresh:sub(19, 34) or not is_of(record, stored) then
  return {0, record, pttl}
end
local attempt = struct.unpack('>I4', record, 35) + 1
local found, former = state, ''
if stored == 'I' then
  -- Its lease is over, and its owner may live: a release gives the record back to it. Who it took over itself is forgotten.
  local before = record:sub(47, 47)
  if before == 'L' then
    before = 'U'
  end
  found, former = 'L', record:sub(3, 18) .. record:sub(39, 46) .. before .. record:sub(48, 55)
end
local taken = fresh:sub(1, 34) .. struct.pack('>I4', attempt) .. fresh:sub(39, 46) .. found .. struct.pack('>I8', pttl)
  .. former .. fresh:sub(56)
redis.call('SET', KEYS[1], taken, 'PX', ARGV[2])
return {1, taken, tonumber(ARGV[2])}
