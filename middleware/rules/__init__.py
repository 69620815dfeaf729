"""The rules for a request: settings, policies, keys, callers, fingerprints, paths. Pure; it imports cache.record alone."""
