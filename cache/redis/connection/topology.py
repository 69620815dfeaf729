"""Chooses the topology for a cache's URL: one server, the master of a Sentinel service, or a cluster.

A cache opens the `Routes` of its `Topology` once for each event loop, asks them for the `Session` that holds a key, and sends its
command there. With one server (and behind Sentinel) that is always the same session, which is its own `Routes`; in a cluster it
is one session per node. A reply that refuses a command may name a detour: in each of these cases the command did not run, so it
can be sent again.
"""

from oncegate.cache.redis.connection.cluster import Cluster, ClusterRoutes
from oncegate.cache.redis.connection.connect import RedisConnector
from oncegate.cache.redis.connection.pipe import Bounds
from oncegate.cache.redis.connection.sentinel import MasterConnector
from oncegate.cache.redis.connection.server import OneServer, Session
from oncegate.cache.redis.url import CLUSTER_SCHEMES, SENTINEL_SCHEMES, parse_servers_url, scheme_of

Topology = OneServer | Cluster
"""The servers that a cache's URL names, not bound to an event loop yet."""
Routes = Session | ClusterRoutes
"""Which server holds which key, on one event loop. They connect on first use."""


def create_topology(url: str, timeout: float, bounds: Bounds) -> Topology:
    """The topology that ``url`` names. Raises ``ValueError``, without credentials in its text. Does not connect."""
    scheme = scheme_of(url)
    if scheme in SENTINEL_SCHEMES:
        address = parse_servers_url(url)
        return OneServer(MasterConnector(address, RedisConnector(address.base, timeout), timeout), bounds, timeout)
    if scheme in CLUSTER_SCHEMES:
        address = parse_servers_url(url)
        return Cluster(address.servers, RedisConnector(address.base, timeout), bounds, timeout)
    return OneServer(RedisConnector(url, timeout), bounds, timeout)
