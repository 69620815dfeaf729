"""The two calls of a first request by callback, which our own stores have besides: each spares it a task.

Of a cache of one's own the coroutines are called, each in a task.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Protocol, TypeVar, cast

from oncegate.cache.errors import CacheError
from oncegate.cache.record import Claim, ClaimRequest, Record
from oncegate.cache.store import Cache

Result = TypeVar("Result")
Adopt = Callable[[Claim], None]
"""Called with a claim that was won after its caller had stopped waiting. It must not block and must not raise."""
Then = Callable[[Result | Exception], None]
"""Called with an answer, or with the error in its place. It must not block and must not raise."""


class CallbackCalls(Protocol):
    """The calls. They always accept.

    ``then`` is called exactly once, perhaps before the call returns, with what the call of that name in `Cache` would return or
    raise. ``loop`` is the running one, which would cost a system call to look up. Give arguments by place: compiled, names cost
    as much as the call.
    """

    def start_claim(
        self,
        key: str,
        request: ClaimRequest,
        loop: asyncio.AbstractEventLoop,
        adopt: Adopt | None,
        then: Then[Claim],
    ) -> asyncio.Task[None] | None:
        """See `Cache.claim`. Returns the task that makes the claim, to be cancelled with its caller; ``None``: it is made."""
        ...

    def start_complete(
        self, key: str, outcome: Record, loop: asyncio.AbstractEventLoop, ttl_ms: int, then: Then[bool]
    ) -> None:
        """See `Cache.complete`."""
        ...


class CallbackCache:
    """Base of our own stores, which have these calls by callback as well; anybody else's cache has coroutines alone.

    A class that is derived from one of them may have changed the coroutines, so they are what is called, unless it says
    ``by_callback=True`` for itself. Its objects take no attributes of their own: nothing can be put in the place of a call
    that is passed by then.
    """

    __slots__ = ("__weakref__",)
    _by_callback: ClassVar = False

    def __init_subclass__(cls, *, by_callback: bool = False) -> None:
        super().__init_subclass__()
        cls._by_callback = by_callback

    def _callback_calls(self) -> CallbackCalls:
        """These calls of this store."""
        return CoroutineCalls(cast(Cache, self))


def callbacks(cache: Cache) -> CallbackCalls:
    """The calls of ``cache`` by callback: its own, if it is one of our stores, or else its coroutines, each in a task."""
    if isinstance(cache, CallbackCache) and cache._by_callback:
        return cache._callback_calls()
    return CoroutineCalls(cache)


class CoroutineCalls:
    """These calls for a cache that has coroutines only: each is a task."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def start_claim(
        self,
        key: str,
        request: ClaimRequest,
        loop: asyncio.AbstractEventLoop,
        adopt: Adopt | None,
        then: Then[Claim],
    ) -> asyncio.Task[None] | None:
        """See `CallbackCalls`."""
        return start(loop, self._cache.claim(key, request, adopt=adopt), then)

    def start_complete(
        self, key: str, outcome: Record, loop: asyncio.AbstractEventLoop, ttl_ms: int, then: Then[bool]
    ) -> None:
        """See `CallbackCalls`."""
        start(loop, self._cache.complete(key, outcome, ttl_ms=ttl_ms), then)


_tasks: set[asyncio.Task[None]] = set()
"""Kept here, since a loop keeps no task alive by itself."""


def start(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, Result], then: Then[Result]) -> asyncio.Task[None]:
    """Run ``call`` in a task of the running ``loop``. ``then`` is called once, also where the task is cancelled."""
    task = loop.create_task(_pass_on(call, then))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


def set_reply(reply: asyncio.Future[Result], answer: Result) -> None:
    """Wake whoever awaits ``reply``, unless they have left: a `Then`, once it is bound to a future."""
    if not reply.done():
        reply.set_result(answer)


async def _pass_on(call: Coroutine[Any, Any, Result], then: Then[Result]) -> None:
    answer: Result | Exception = CacheError("the call was cancelled")
    try:
        answer = await call
    except Exception as error:  # noqa: BLE001 - passed on, whatever a cache of one's own may raise
        answer = error
    finally:
        then(answer)
