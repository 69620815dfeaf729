"""A reconnecting connection: opened on demand, and again when it was lost, without making a caller wait long.

While Redis is away, opening is tried on demand with growing, jittered pauses. A call within a pause fails at once,
so that an outage doesn't slow requests down; a pause too short to notice is waited out.
"""

import asyncio
import logging
from collections.abc import Callable

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, CacheUnavailable
from oncegate.cache.redis.connection.connect import Opener, Peer
from oncegate.cache.redis.connection.pipe import Bounds, PipelinedConnection

log = logging.getLogger(__name__)

PAUSES = Backoff(0.05, 1.0, least=0.5)
UNNOTICED = 0.1
"""A pause (s) that a caller waits out instead of failing."""
STABLE = 1.0
"""A connection that lived this long (s) was good: losing it is a new event, not the next failure in a row."""


class SharedConnection:
    """One `PipelinedConnection` at a time to what ``opener`` opens, on one event loop. ``pipeline`` is the open one, or ``None``.

    ``on_open`` is called with the peer of each new connection, ``on_broken`` with that of each one that broke with commands
    unanswered: they may still reach Redis.
    """

    def __init__(
        self,
        opener: Opener,
        bounds: Bounds,
        timeout: float,
        *,
        on_open: Callable[[Peer], None],
        on_broken: Callable[[Peer], None],
    ) -> None:
        self.pipeline: PipelinedConnection | None = None
        self.peer: Peer | None = None
        self._opener = opener
        self._bounds = bounds
        self._timeout = timeout
        self._on_open = on_open
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[CacheError | PipelinedConnection] | None = None
        self._closed = False
        self._callers = 0
        self._failures = 0
        self._away = False
        self._not_before = 0.0
        self._opened_at = 0.0
        self._error: CacheError = CacheUnavailable("no connection to Redis")

    @property
    def idle(self) -> bool:
        """Whether nothing is unanswered and no call waits for a connection."""
        return self._opening is None and (self.pipeline is None or not self.pipeline.unanswered)

    async def ready(self, deadline: float) -> PipelinedConnection:
        """The open connection, opened if need be. Raises `CacheUnavailable` by ``deadline``, or `CacheUnsupported`."""
        if self.pipeline is not None:
            return self.pipeline
        if self._closed:
            raise CacheUnavailable("the cache was closed")
        if self._opening is None:
            pause = self._not_before - self._loop.time()
            if pause > UNNOTICED:
                raise _again(self._error)
            self._opening = self._loop.create_task(self._open(max(0.0, pause)))
        if self._callers >= self._bounds.commands:
            raise CacheUnavailable(f"no connection to Redis yet, and {self._callers} callers wait for it")
        opening = self._opening
        self._callers += 1
        try:
            # wait, not wait_for: the attempt to open is shared, and goes on when one caller's time is over.
            await asyncio.wait((opening,), timeout=max(0.0, deadline - self._loop.time()))
        finally:
            self._callers -= 1
        if not opening.done():
            raise CacheUnavailable("no connection to Redis came about in time")
        if opening.cancelled():
            raise CacheUnavailable("the cache was closed")
        outcome = opening.result()
        if isinstance(outcome, PipelinedConnection):
            return outcome
        raise _again(outcome)

    def hold(self, seconds: float, reason: str) -> None:
        """Cut the connection and open none for so long, or until `retry_now`."""
        if self.pipeline is not None:
            self.pipeline.fail(reason)
        self._error = CacheUnavailable(reason)
        self._not_before = self._loop.time() + seconds

    def retry_now(self) -> None:
        """The server is known to be up again: let the next caller try at once."""
        self._not_before = 0.0

    def close(self) -> None:
        """Cut the connection, and open none any more. May be called when the loop is closed already."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None and not self._loop.is_closed():
            opening.cancel()
        if self.pipeline is not None:
            self.pipeline.fail("the cache was closed")

    async def _open(self, pause: float) -> CacheError | PipelinedConnection:
        """Never raises a `CacheError` but returns it: it is for as many callers as there are, or for none."""
        try:
            if pause:
                await asyncio.sleep(pause)
            async with asyncio.timeout(self._timeout):
                self.pipeline, self.peer = await self._opener.open(self._bounds, self._lost, self._timeout)
        except TimeoutError:
            return self._failed(CacheUnavailable(f"Redis at {self._opener.place} did not answer in time"))
        except CacheError as error:
            return self._failed(error)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            log.debug("what answered makes no sense", exc_info=error)
            return self._failed(CacheUnavailable(f"what answers at {self._opener.place} does not answer as Redis does"))
        except Exception as error:  # each caller would get it: a fault of a library must not end them
            log.exception("a connection to Redis could not be opened")
            return self._failed(
                CacheUnavailable(f"Redis at {self._opener.place} can't be used: {type(error).__name__}")
            )
        finally:
            self._opening = None
        self._opened_at = self._loop.time()
        if self._away:
            self._away = False
            log.warning("Redis at %s is back", self.peer.place or self._opener.place)
        self._on_open(self.peer)
        return self.pipeline

    def _failed(self, error: CacheError) -> CacheError:
        if self._failures == 0:
            log.warning("%s", error)
        self._away = True
        self._error = error
        self._back_off()
        return error

    def _lost(self, pipeline: PipelinedConnection, unanswered: bool) -> None:
        if pipeline is not self.pipeline:
            return  # it failed while it was being opened: `_open` deals with it
        peer, self.pipeline, self.peer = self.peer, None, None
        if self._loop.time() - self._opened_at > STABLE:
            self._failures = 0
        self._error = CacheUnavailable(pipeline.lost or "the connection to Redis was lost")
        self._back_off()
        if unanswered and peer is not None:
            self._on_broken(peer)

    def _back_off(self) -> None:
        self._failures += 1
        self._not_before = self._loop.time() + PAUSES.pause(self._failures)


def _again(error: CacheError) -> CacheError:
    """A fresh copy: one exception object raised to many callers would collect all their tracebacks."""
    again = type(error)(str(error))
    for note in getattr(error, "__notes__", ()):
        again.add_note(note)
    return again
