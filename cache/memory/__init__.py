"""Records in this process's memory: `MemoryCache`, the reference that every other cache is compared with."""
