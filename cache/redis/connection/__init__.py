"""Connections to Redis that many callers share: to one server, a Sentinel service or a Cluster (`topology.create_topology`)."""
