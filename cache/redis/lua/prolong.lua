#!lua flags=allow-oom
-- Let a record that has an outcome live for at least so long.
--
-- KEYS[1]  the record
-- ARGV[1]  ms to live at least
-- returns  1: it does; 0: there is none, it is in flight, or it lives for longer
if redis.call('GETRANGE', KEYS[1], 1, 1) == 'I' then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[1], 'GT')
