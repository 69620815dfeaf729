"""Records in this process's memory: `MemoryCache` is the reference that every other cache is compared with."""
