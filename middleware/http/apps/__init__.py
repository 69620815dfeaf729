"""Apps: what an app's own routes and functions say about its requests, and its description of them (OpenAPI)."""
