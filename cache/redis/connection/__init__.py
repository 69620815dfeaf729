"""Connections to Redis that many callers share: one server, a Sentinel service or a Cluster. `topology.routes` opens them."""
