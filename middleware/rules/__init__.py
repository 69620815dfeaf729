"""What a request is judged by: settings, policies, keys, callers, fingerprints, paths. Pure; it imports cache.record alone."""
