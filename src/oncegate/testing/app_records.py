"""For tests of an app of one's own: records that can be brought into each state.

Time and death are made, not awaited: a lease lapses by a clock that is put forward, and a killed owner is one whose calls the
cache takes no longer, which is all that a cache ever sees of a process that has died.
"""

import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from oncegate.cache.callbacks import Adopt
from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import Claim, ClaimRequest, Record, State
from oncegate.cache.store import Page
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.keys.digests import Digests, Secrets, given_digests
from oncegate.middleware.rules.keys.key import key_digest
from oncegate.middleware.rules.settings import Route

Given = TypeVar("Given")

_UNENFORCED: Final = (Route(path="*", methods=[]),)
_BEYOND_MS: Final = 2
"""More than an instant, which is a whole millisecond, can be rounded down by."""


class AppRecords(MemoryCache):
    """A `MemoryCache` whose records a test can have lapse, and whose attempts it can take for dead. Give it to what is tested:

    as ``cache``, where your tests make the app, or by `use`, where the app is there from its import on.
    ``secret`` is the app's, if it has one. ``key`` is always an idempotency key, whoever the caller is.
    """

    def __init__(self, secret: Secrets = None) -> None:
        self._passed = 0.0
        super().__init__(clock=lambda: time.monotonic() + self._passed)
        self._digests = given_digests(secret)
        self._names: set[str] = set()
        self._dead: set[bytes] = set()
        self._is_away = False
        self._used: list[tuple[Any, int, Any]] = []

    def use(self, app: Any, *, enforce: bool = True) -> None:
        """Have ``app`` (FastAPI, Starlette) keep its records here, until the test ends, instead of in its own cache.

        ``enforce=False`` turns enforcement off: its middleware passes every request through, keys or not. Raises ``LookupError``
        for an app that has no `IdempotencyMiddleware` of its own.
        """
        added = getattr(app, "user_middleware", [])
        own = [index for index, each in enumerate(added) if _is_ours(each.cls)]
        if not own:
            raise LookupError(
                "the app has no IdempotencyMiddleware of its own: add it, or give it cache=records where you make it"
            )
        index = own[0]
        each = added[index]
        self._used.append((app, index, each))
        self._digests = given_digests(each.kwargs.get("secret"))
        options = {**each.kwargs, "cache": self, **({} if enforce else {"routes": _UNENFORCED})}
        _put(app, index, type(each)(each.cls, *each.args, **options))

    def restore(self) -> None:
        """Give the apps back the caches that they had. The fixture does it."""
        while self._used:
            _put(*self._used.pop())

    def lapse(self, key: str) -> None:
        """Let the time pass that the records of ``key`` had: one in flight reads unknown then, any other one is forgotten.

        It passes for every record: what would have expired earlier has. Raises ``LookupError`` where the key has no record.
        """
        left = [
            held.remaining_ms - held.record.retention_ms * (held.record.state is State.IN_FLIGHT)
            for held in self._of(key).values()
        ]
        if not left:
            raise LookupError("no record of this key: was it sent, and with the app's own secret?")
        self._passed += (max(left) + _BEYOND_MS) / 1000

    def kill_owner(self, key: str) -> None:
        """Take whoever executes ``key`` now for dead, as by SIGKILL: its lease is not renewed, and its outcome never recorded.

        Your code goes on, since it is in the test's own process; its record stays in flight until it lapses: `lapse`. Raises
        ``LookupError`` where nothing is executed under the key.
        """
        running = {held.record.token for held in self._of(key).values() if held.record.state is State.IN_FLIGHT}
        if not running:
            raise LookupError("nothing is executed under this key now")
        self._dead |= running

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within it, no call reaches the cache, as while Redis is down. What is there is there again afterwards."""
        self._is_away = True
        try:
            yield
        finally:
            self._is_away = False

    def _of(self, key: str) -> dict[str, Claim]:
        digests: list[Digests] = [self._digests, *([self._digests.former] if self._digests.former else [])]
        names = {key_digest(key, each) for each in digests}
        found = {each: _at_once(super(AppRecords, self).get(each)) for each in self._names if _key_part(each) in names}
        return {name: held for name, held in found.items() if held is not None}

    def _reach(self) -> None:
        if self._is_away:
            raise CacheUnavailable("the test has it be away")

    # -- the calls of a Cache -----------------------------------------------------------------------------------------

    async def claim(self, key: str, request: ClaimRequest, *, adopt: Adopt | None = None) -> Claim:
        """See `Cache.claim`."""
        self._reach()
        self._names.add(key)
        return await super().claim(key, request, adopt=adopt)

    async def renew(self, key: str, *, token: bytes, lease_ms: int) -> bool:
        """See `Cache.renew`."""
        self._reach()
        return token not in self._dead and await super().renew(key, token=token, lease_ms=lease_ms)

    async def complete(self, key: str, outcome: Record, *, ttl_ms: int) -> bool:
        """See `Cache.complete`."""
        self._reach()
        return outcome.token not in self._dead and await super().complete(key, outcome, ttl_ms=ttl_ms)

    async def release(self, key: str, *, token: bytes) -> bool:
        """See `Cache.release`."""
        self._reach()
        return token not in self._dead and await super().release(key, token=token)

    async def get(self, key: str) -> Claim | None:
        """See `Cache.get`."""
        self._reach()
        return await super().get(key)

    async def resolve(self, key: str, request: ResolveRequest) -> Resolution:
        """See `Cache.resolve`."""
        self._reach()
        return await super().resolve(key, request)

    async def scan(self, namespace: str, key_digest: str | None = None, *, cursor: str = "", limit: int = 100) -> Page:
        """See `Cache.scan`."""
        self._reach()
        return await super().scan(namespace, key_digest, cursor=cursor, limit=limit)

    async def check(self) -> list[str]:
        """See `Cache.check`."""
        self._reach()
        return await super().check()


def _is_ours(middleware: object) -> bool:
    return isinstance(middleware, type) and issubclass(middleware, IdempotencyMiddleware)


def _put(app: Any, index: int, middleware: Any) -> None:
    app.user_middleware[index] = middleware
    app.middleware_stack = None  # Starlette makes it anew for the next request


def _key_part(look_up_key: str) -> str:
    """The digest of the idempotency key, in a record's look-up key or an execution record's."""
    return look_up_key.split(":")[1]


def _at_once(call: Coroutine[Any, Any, Given]) -> Given:
    """The answer of a coroutine that awaits nothing: tests of an app need no event loop of their own."""
    try:
        call.send(None)
    except StopIteration as done:
        answer: Given = done.value
        return answer
    raise AssertionError("a MemoryCache awaits nothing")  # pragma: no cover
