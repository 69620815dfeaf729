"""Records and streams in Redis: `RedisCache` (store), `Numbering` and `Appended` for entries (calls), URLs (url), streams.

Only this room imports redis-py and hiredis.
"""
