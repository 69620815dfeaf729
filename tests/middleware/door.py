"""The middleware as its clients meet it: an app behind it, requests to it, and what comes back."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from oncegate.cache.record import Claim, Record, State
from oncegate.cache.store import Cache
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.http.middleware import IdempotencyMiddleware
from oncegate.middleware.rules.keys.key import record_key, scope_parts
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.asgi_client import Client
from testing.waiting import until

Lines = Iterable[tuple[str, str]]
Answer = int | BaseException

PATIENCE = 30.0
"""Seconds until a test that awaits a condition gives up: never a measure of speed."""


class Call(Client):
    """One request, and its answer once `answered` returns."""

    task: "asyncio.Task[Any]"

    def go(self, app: Any) -> "Call":
        self.task = asyncio.create_task(self.call(app))
        return self

    async def answered(self) -> "Call":
        async with asyncio.timeout(PATIENCE):
            await self.task
        return self

    async def gone(self) -> None:
        """The request is cancelled, as servers and middlewares do it whose client has left."""
        self.task.cancel()
        await asyncio.wait([self.task], timeout=PATIENCE)
        assert self.task.cancelled()

    def value(self, name: str) -> str | None:
        """What the response's one field line of that name says."""
        values = self.values(name.encode())
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0].decode("latin-1") if values else None

    @property
    def replayed(self) -> bool:
        return self.values(b"idempotent-replayed") == [b"true"]

    @property
    def problem(self) -> dict[str, Any]:
        assert self.done
        assert self.value("content-type") == "application/problem+json"
        members: dict[str, Any] = json.loads(self.body)
        assert members["status"] == self.status
        return members

    @property
    def code(self) -> str:
        return str(self.problem["code"])


class Answering:
    """An app that gives its answers one after the other (the last again and again) and keeps what has arrived.

    An answer is a status, with ``answer N`` for a body in the Nth call, or an exception to raise. With ``held``, each call
    waits until `release`.
    """

    def __init__(
        self,
        *answers: Answer,
        body: bytes | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
        held: bool = False,
    ) -> None:
        self._answers = answers or (201,)
        self._body = body
        self._headers = list(headers)
        self._go = asyncio.Event()
        if not held:
            self._go.set()
        self._arrival = asyncio.Condition()
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []

    @property
    def calls(self) -> int:
        return len(self.scopes)

    def hold(self) -> None:
        """Have each call from now on wait until `release`."""
        self._go.clear()

    def release(self) -> None:
        self._go.set()

    def given(self) -> list[bytes]:
        """The bodies that it has answered with, where it makes its own."""
        return [b"answer %d" % number for number in range(1, self.calls + 1)]

    async def arrivals(self, number: int = 1) -> None:
        """Wait until so many calls have arrived."""
        async with asyncio.timeout(PATIENCE), self._arrival:
            await self._arrival.wait_for(lambda: self.calls >= number)

    def lines(self, name: str, call: int = -1) -> list[str]:
        """What the request's field lines of that name said in one call."""
        return [value.decode("latin-1") for key, value in self.scopes[call]["headers"] if key == name.encode()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        async with self._arrival:
            self.scopes.append(scope)
            self.bodies.append(body)
            number = self.calls
            self._arrival.notify_all()
        await self._go.wait()
        answer = self._answers[min(number, len(self._answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        await send({"type": "http.response.start", "status": answer, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"answer %d" % number if self._body is None else self._body})


class Answered(Watch):
    """Counts what the cache has answered."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def cache_answered(self, operation: str, seconds: float) -> None:
        self.count[operation] += 1


class Door:
    """The middleware around an app, on a cache, in a namespace of the test's own.

    ``options`` are the middleware's, and the settings of all routes.
    """

    def __init__(self, app: Any, cache: Cache, namespace: str, **options: Any) -> None:
        given = {name: options.pop(name) for name in IdempotencySettings.model_fields.keys() & options.keys()}
        bounded = {"body_timeout": PATIENCE, "drain_timeout": PATIENCE, **options}
        self.cache = cache
        self.namespace = namespace
        self.middleware = IdempotencyMiddleware(
            app, cache=cache, namespace=namespace, settings=IdempotencySettings(**given), **bounded
        )

    def begin(
        self,
        body: bytes = b'{"amount": 1}',
        *,
        key: str | None = "k-1",
        method: str = "POST",
        path: str = "/payments",
        headers: Lines = (),
        app: Any = None,
        **client: Any,
    ) -> Call:
        """Send a request and return at once. ``client`` goes to the `Client`: pieces of the body, parts of the scope."""
        lines = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        if key is not None:
            lines.append((b"idempotency-key", key.encode("latin-1")))
        client.setdefault("pieces", (body,))
        return Call(method, path.encode(), lines, **client).go(app or self.middleware)

    @asynccontextmanager
    async def in_flight(self, app: Answering, **request: Any) -> AsyncIterator[Call]:
        """A request that ``app`` holds within the block, and answers at its end; see `begin`."""
        call, before = self.begin(**request), app.calls
        await app.arrivals(before + 1)
        try:
            yield call
        finally:
            app.release()
        await call.answered()

    async def send(self, body: bytes = b'{"amount": 1}', **request: Any) -> Call:
        """Send a request and await its answer; see `begin`."""
        return await self.begin(body, **request).answered()

    def look_up_key(self, key: str = "k-1", caller: bytes | None = None) -> str:
        fields = {b"authorization": [caller]} if caller is not None else {}
        return record_key(self.namespace, key, scope_parts(fields, (b"authorization",)))

    async def claim(self, key: str = "k-1") -> Claim:
        """The record of a key, which is there, by the cache."""
        found = await self.cache.get(self.look_up_key(key))
        assert found is not None, "there is no record"
        return found

    async def record(self, key: str = "k-1") -> Record:
        return (await self.claim(key)).record

    async def state(self, key: str = "k-1") -> State:
        found = await self.cache.get(self.look_up_key(key))
        return State.ABSENT if found is None else found.record.state

    async def becomes(self, state: State, key: str = "k-1") -> None:
        """Wait until the key's record reads ``state``."""

        async def reads() -> bool:
            return await self.state(key) is state

        await until(reads)

    @property
    def slots(self) -> int:
        return self.middleware.admissions.in_flight.slots.taken

    @property
    def buffered(self) -> int:
        return self.middleware.door.buffered.bytes


async def waits(begin: Callable[[], Call], answered: Answered, operation: str = "claim") -> Call:
    """The request that ``begin`` makes, once it waits: once the cache has answered that another one is in flight."""
    before = answered.count[operation]
    call = begin()
    await until(lambda: answered.count[operation] > before)
    for _ in range(10):
        await asyncio.sleep(0)  # it has heard of that, and asks no more
    return call
