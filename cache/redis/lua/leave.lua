-- Take workers out of a group that hold nothing: the one that leaves, and those that were inactive for long.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group
-- ARGV[2]  the worker that leaves, or an empty string
-- ARGV[3]  ms of silence after which a worker is taken to be gone
-- returns  how many were taken out
--
-- In one script, since with a worker goes all that is pending under its name: nothing may be delivered to it in between.
-- One that was only slow comes back with its next read.

-- include fields.lua
local out = 0
for _, worker in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local field = fields(worker)
  if field['pending'] == 0 and (field['name'] == ARGV[2] or field['idle'] > tonumber(ARGV[3])) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], field['name'])
    out = out + 1
  end
end
return out
