"""Handlers of deliveries: how one is called, or a loop entered in its place, what comes of it, and that there is one for a consumer."""
