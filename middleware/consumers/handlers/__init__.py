"""Handlers of deliveries: how one is called, what comes of it, and that a consumer has one only; or a loop in its place."""
