"""Records in Redis: `RedisCache` (store), its URLs (url), and what it warns of (advice). Only this room speaks Redis."""
