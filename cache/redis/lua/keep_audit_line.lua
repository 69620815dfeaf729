#!lua flags=allow-oom
-- Keeps a line about what an operator changed in a namespace, and the last ones before it.
--
-- KEYS[1]  the namespace's lines, a list, the newest first
-- ARGV[1]  the line; ARGV[2] how many are kept with it, at least 1; ARGV[3] for how long from now on, ms
-- returns  1
--
-- allow-oom, because what is done on a full server has to be seen, too; it is bounded.
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], 0, ARGV[2] - 1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
