"""The rules for a request: settings, policies, keys, callers, fingerprints, paths. Imports no other room of the middleware."""
