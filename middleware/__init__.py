"""The idempotency rules: key, fingerprint, policy, gate, attempt, and the doors to them. Imports cache, never app."""
