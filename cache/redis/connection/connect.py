"""Opens connections to Redis: redis-py connects, encrypts and authenticates; then a `PipelinedConnection` takes over.

redis-py knows URLs, TLS and logins, but has no connection that many callers share. So once it is logged in, its stream is
detached and the transport gets our own protocol. Its retries are off: it would
repeat a claim whose reply was lost and read its own claim as another's.
"""

import asyncio
import copy
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Protocol

from hiredis import ReplyError
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from oncegate.cache.redis.connection import faults
from oncegate.cache.redis.connection.pipe import Bounds, PipelinedConnection, Reply
from oncegate.cache.redis.scripts import SCRIPTS, pack
from oncegate.cache.redis.url import ONE_SERVER, REDIS_SCHEMES, Server, either, scheme_of

_HELLO = pack(b"HELLO", b"2")
_INFO = pack(b"INFO", b"server")
_ANONYMOUS = dict.fromkeys(
    {"driver_info"} & signature(AbstractConnection).parameters.keys() or ("lib_name", "lib_version")
)
"""redis-py is not to say its version to Redis: for each connection it would read its package's metadata from the disk."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Our end of a connection as the server names it: its id there, on the server process ``run_id`` (``None``: not known).

    ``role`` is what the server was when the connection opened: ``master``, ``replica``, or empty (not known). ``place`` is
    its address, as its `Opener` names it.
    """

    client_id: int
    run_id: str | None
    role: str = ""
    place: str = ""


OnLost = Callable[[PipelinedConnection, bool], None]
"""See `PipelinedConnection`: called once when a connection broke, with whether anything was unanswered."""


OnPlace = Callable[[str | None], None]
"""Called with the only right `Peer.place`, or ``None``: it is about to change, and until then no place is right."""


class Opener(Protocol):
    """An opener of connections to the server in question, which need not be the same each time. ``place`` names it in texts."""

    place: str

    async def open(self, bounds: Bounds, on_lost: OnLost, timeout: float) -> tuple[PipelinedConnection, Peer]:
        """A connection that is logged in and has the scripts loaded. Raises `CacheUnavailable` or `CacheUnsupported`."""
        ...

    def watches(self, on_place: OnPlace) -> Sequence[Coroutine[Any, Any, None]]:
        """The coroutine to run beside the connections, if any: it calls ``on_place`` whenever it learns the right place."""
        ...


class RedisConnector:
    """The `Opener` for the one Redis of a URL (``redis://``, ``rediss://``, ``unix://``, with redis-py's options).

    Raises ``ValueError`` for a URL that can't be used, without its credentials in the text.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._options: dict[str, Any] = dict(_parse(url))
        self._class: type[AbstractConnection] = self._options.pop("connection_class", Connection)
        self._options |= {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "health_check_interval": 0,
            **_ANONYMOUS,
        }
        try:
            self._class(**self._options)
        except (TypeError, ValueError, RedisError, OSError) as error:
            raise ValueError("the Redis URL has an option that can't be used") from error
        server = self._options.get("host", "localhost"), int(self._options.get("port", 6379))
        self.place = str(self._options.get("path") or place_of(server))

    def to(self, host: str, port: int) -> "RedisConnector":
        """The same for another server: same login, encryption and options."""
        other = copy.copy(self)
        other._options = self._options | {"host": host, "port": port}
        other.place = place_of((host, port))
        return other

    def to_sentinel(self, host: str, port: int, login: dict[str, str]) -> "RedisConnector":
        """The same for a Sentinel: encryption and options, but a login of its own and no database."""
        other = self.to(host, port)
        others = {"username", "password", "db"}
        other._options = {name: value for name, value in other._options.items() if name not in others} | login
        return other

    async def open(self, bounds: Bounds, on_lost: OnLost, timeout: float) -> tuple[PipelinedConnection, Peer]:
        """See `Opener.open`."""
        pipeline = PipelinedConnection(bounds, on_lost)
        pipeline.take_over(await self.connect())
        try:
            return pipeline, replace(
                await greet(pipeline, asyncio.get_running_loop().time() + timeout), place=self.place
            )
        except BaseException:  # also a cancellation: a connection without an owner is closed
            pipeline.fail("the connection to Redis was not accepted")
            raise

    async def connect(self) -> asyncio.StreamWriter:
        """A stream that is connected, encrypted and logged in; no reply is outstanding. Raises `CacheUnavailable`."""
        connection = self._class(**self._options)
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            await connection.connect()  # type: ignore[no-untyped-call] # redis-py does not annotate it
            if task is not None and task.cancelling() > cancelled:
                # redis-py uses `asyncio.wait_for`, which before Python 3.12 may swallow a cancellation.
                raise asyncio.CancelledError
            return _take_over(connection)
        except (RedisError, OSError, RuntimeError) as error:  # uvloop raises the last where the other side has left
            raise faults.of_opening(error, self.place) from error
        finally:
            await connection.disconnect(nowait=True)

    def watches(self, on_place: OnPlace) -> Sequence[Coroutine[Any, Any, None]]:  # noqa: ARG002  # Opener names the parameters
        """See `Opener.watches`. The address is fixed."""
        return ()


def _parse(url: str) -> dict[str, Any]:
    if scheme_of(url) not in ONE_SERVER:
        raise ValueError(f"a Redis URL begins with {either(REDIS_SCHEMES)}")
    try:
        return dict(parse_url(url))
    except ValueError:
        raise ValueError("the Redis URL can't be read") from None  # the parser's own text may quote parts of it


def _take_over(connection: AbstractConnection) -> asyncio.StreamWriter:
    """Detach redis-py's stream from its transport. All its commands are answered, so nothing is in its buffer."""
    writer = connection._writer
    if writer is None or writer.transport.is_closing():
        raise ConnectionResetError("the connection was closed at once")
    # From here on the `PipelinedConnection` closes it; redis-py would warn that it was not closed.
    connection._writer = connection._reader = None
    return writer


async def greet(pipeline: PipelinedConnection, deadline: float) -> Peer:
    """Fetch the server's version and our id there, and load the scripts, in one round trip."""
    replies = [pipeline.send(packed, deadline) for packed in (_HELLO, _INFO, *(script.load for script in SCRIPTS))]
    hello, info, *loaded = await asyncio.gather(*replies)
    fields = info_fields(info)
    greeting = _pairs(hello)
    # Redis 5 has no HELLO, and INFO may be forbidden to our user: one of them will do.
    version = _text(greeting.get("version")) or fields.get("redis_version")
    if version is None and isinstance(hello, ReplyError) and faults.reply_class(hello) != "ERR":
        raise faults.of_reply(hello)
    faults.check_version(version or "")
    for reply in loaded:
        if isinstance(reply, ReplyError):
            raise faults.of_reply(reply)
    return Peer(int(greeting.get("id", 0)), fields.get("run_id"), _text(greeting.get("role")))


def place_of(server: Server) -> str:
    """A server's address as ``host:port``."""
    host, port = server
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _pairs(reply: Reply) -> dict[str, Reply]:
    if not isinstance(reply, list):
        return {}
    return {_text(name): value for name, value in zip(reply[::2], reply[1::2], strict=False)}


def info_fields(reply: Reply) -> dict[str, str]:
    """The fields of an `INFO` reply; none where it is an error."""
    lines = _text(reply).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _text(value: Reply) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
