"""Records and the stores that hold them. Imports nothing else of oncegate."""
