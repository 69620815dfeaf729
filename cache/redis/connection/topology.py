"""Chooses the topology for a cache's URL: one server, the master of a Sentinel service, or a cluster."""

from oncegate.cache.redis.connection.cluster import Cluster
from oncegate.cache.redis.connection.connect import Dialler
from oncegate.cache.redis.connection.pipe import Bounds
from oncegate.cache.redis.connection.routes import Topology
from oncegate.cache.redis.connection.sentinel import MasterDialler
from oncegate.cache.redis.connection.server import OneServer
from oncegate.cache.redis.url import CLUSTER_SCHEMES, SENTINEL_SCHEMES, parse_address


def create_topology(url: str, timeout: float, bounds: Bounds) -> Topology:
    """The topology that ``url`` names. Raises ``ValueError``, without credentials in its text. Does not connect."""
    scheme = url.partition("://")[0].lower()
    if scheme in SENTINEL_SCHEMES:
        address = parse_address(url)
        return OneServer(MasterDialler(address, Dialler(address.base, timeout), timeout), bounds, timeout)
    if scheme in CLUSTER_SCHEMES:
        address = parse_address(url)
        return Cluster(address.servers, Dialler(address.base, timeout), bounds, timeout)
    return OneServer(Dialler(url, timeout), bounds, timeout)
