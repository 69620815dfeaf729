#!lua flags=allow-oom
-- Whether the records of a namespace are under one of the secrets that a process has.
--
-- KEYS[1]  the namespace's check values, each by one secret, with spaces between
-- ARGV[1]  "1": this process is going to write records, so from now on they may be under its secrets and no others
-- ARGV[2]  the check value of its first secret; ARGV[3] that of the other one, while two are in use
-- returns  1  they are, or there are none yet
--          0  they are under another one; nothing was written
--
-- While two secrets are in use both are kept, so that who has the new one alone may start afterwards; that narrows it again.
-- allow-oom, because it is 80 bytes, and a gateway must be able to start on a full server.
local held = redis.call('GET', KEYS[1])
if held then
  local known = false
  for at = 2, #ARGV do
    known = known or held:find(ARGV[at], 1, true) ~= nil
  end
  if not known then
    return 0
  end
end
if ARGV[1] == '1' then
  redis.call('SET', KEYS[1], table.concat(ARGV, ' ', 2))
end
return 1
