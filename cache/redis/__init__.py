"""Records and streams in Redis: `RedisCache` (store), its URLs (url), its warnings (advice), and command streams (streams).

Only this room imports redis-py and hiredis."""
