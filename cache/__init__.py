"""Records, their law (`TRANSITIONS`) and the stores that hold them (`Cache`, `open_cache`). Imports nothing else of oncegate."""
