"""Tokens (JWT, RFC 7519) that name callers: their settings, the issuer's keys, and what a verified one claims."""
