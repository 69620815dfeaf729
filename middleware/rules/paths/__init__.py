"""Paths: the patterns of routes, and the paths that different servers may read from one request target."""
