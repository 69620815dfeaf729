"""Makes redis-py's asyncio client for a cache URL, for streams, which don't fit on the records' shared connections.

Nothing connects before the first command. redis-py's own retries are off: it would send an append twice, and hide from its
user that a read took place.
"""

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from oncegate.cache.redis.url import CLUSTER_SCHEMES, SENTINEL_SCHEMES, Address, parse_address

Client = Redis | RedisCluster
"""Both run commands on one key in the same way. To be closed with ``aclose()``."""
REDIS_ERRORS = (RedisError, RedisClusterException, OSError)
"""All that redis-py raises on purpose: the errors of a cluster that can't be reached are no ``RedisError``."""


def create_client(url: str, *, timeout: float) -> Client:
    """A client for the Redis of a cache URL: one server, the master of a Sentinel service, or a cluster. It does not connect.

    ``timeout`` (s) bounds connecting, and each wait for a reply: give more than a blocking command may block. Replies are
    bytes, in the shapes of RESP2. Raises ``ValueError`` for a URL that can't be used, without its credentials in the text.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in SENTINEL_SCHEMES:
        return _of_sentinel(parse_address(url), timeout)
    if scheme in CLUSTER_SCHEMES:
        address = parse_address(url)
        nodes = [ClusterNode(host, port) for host, port in address.servers]
        options = _options(address.base, timeout)
        del options["db"]
        return RedisCluster(startup_nodes=nodes, **_encryption_by_name(options))
    return Redis.from_pool(ConnectionPool(**_options(url, timeout)))


def _of_sentinel(address: Address, timeout: float) -> Client:
    options = _encryption_by_name(_options(address.base, timeout))
    others = {"username", "password", "db"}
    login = {name: value for name, value in options.items() if name not in others} | address.login
    sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py does not annotate it
        list(address.servers), sentinel_kwargs=login, **options
    )
    client: Client = sentinel.master_for(address.service, connection_pool_class=_MasterPool)
    return client


class _MasterPool(SentinelConnectionPool):
    """redis-py's own, which leaves the connections to the Sentinels open when its client is closed."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def _options(url: str, timeout: float) -> dict[str, Any]:
    if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
        raise ValueError("the cache is not a Redis: streams need one")
    try:
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError:
        raise ValueError("the Redis URL can't be read") from None  # the parser's own text may quote parts of it
    return (
        {"db": 0}
        | options
        | {
            "protocol": 2,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "health_check_interval": 0,
        }
    )


def _encryption_by_name(options: dict[str, Any]) -> dict[str, Any]:
    """``options`` with ``ssl`` in the place of the class of connection, for clients that choose that themselves."""
    others = {name: value for name, value in options.items() if name not in ("connection_class", "host", "port")}
    return others | ({"ssl": True} if options.get("connection_class") is SSLConnection else {})
