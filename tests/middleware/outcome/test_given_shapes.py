"""What servers, apps, brokers, handlers and caches of one's own may give in another shape than the types say.

From source all of it was taken as it came. A compiled module checks types when it runs: what happened to work must go on to."""

import asyncio
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from oncegate import (
    Begun,
    CommandProcessor,
    Delivery,
    IdempotencyMiddleware,
    IdempotencySettings,
    MemoryCache,
    Recording,
    Subscription,
)
from oncegate.cache.record import Record, StoredResponse


async def exchange(
    cache: MemoryCache, key: Sequence[Sequence[Any]], *chunks: Any, app: Any = None, **settings: Any
) -> list[Any]:
    """The messages that answer a request whose field lines are lists, and whose body comes in ``chunks``."""
    arriving = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    arriving.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Any] = []

    async def receive() -> Any:
        return arriving.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [[b"accept", b"*/*"], [b"idempotency-attempt", b"9"], *key]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    middleware = IdempotencyMiddleware(app or answering, cache=cache, settings=IdempotencySettings(**settings))
    await middleware(scope, receive, send)
    assert await middleware.drain(30) == 0
    return sent


async def answering(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    assert [b"idempotency-attempt", b"9"] not in scope["headers"]
    await send({"type": "http.response.start", "status": 201, "headers": [[b"x-id", b"7"]]})
    await send({"type": "http.response.body", "body": bytearray(body)})


async def test_field_lines_may_be_lists() -> None:
    start, _ = await exchange(MemoryCache(), [])
    assert [tuple(line) for line in start["headers"]] == [(b"x-id", b"7"), (b"cache-status", b"oncegate; fwd=bypass")]
    cache = MemoryCache()
    for status in (b"oncegate; fwd=miss; stored", b"oncegate; hit; ttl="):
        start, _ = await exchange(cache, [[b"idempotency-key", bytearray(b"k")], [b"authorization", b"me"]])
        headers = dict(start["headers"])
        assert headers[b"cache-status"].startswith(status)
        assert type(headers[b"idempotency-key"]) is bytes, "as servers want it"


async def test_an_app_s_field_lines_may_be_any_kind_of_bytes() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        line = [bytearray(b"X-Id"), bytearray(b"7")]
        await send({"type": "http.response.start", "status": 201, "headers": [line, [bytearray(b"Date"), b"now"]]})
        await send({"type": "http.response.body", "body": b""})

    cache = MemoryCache()
    for stored in (2, 1):
        start, _ = await exchange(cache, [[b"idempotency-key", b"k"]], app=app)
        assert start["headers"][:stored] == [(b"x-id", b"7"), (b"date", b"now")][:stored]
        assert {type(part) for line in start["headers"] for part in line} == {bytes}


async def test_an_app_may_send_one_message_again_and_again() -> None:
    messages = ({"type": "http.response.start", "status": 201, "headers": []}, {"type": "http.response.body"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    cache = MemoryCache()
    for key in ([], [], [[b"idempotency-key", b"k"]], [[b"idempotency-key", b"l"]]):
        start, _ = await exchange(cache, key, app=app)
        assert [name for name, _ in start["headers"]].count(b"cache-status") == 1
    assert messages == ({"type": "http.response.start", "status": 201, "headers": []}, {"type": "http.response.body"})


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_a_body_may_come_in_any_kind_of_bytes(kind: type) -> None:
    cache = MemoryCache()
    key = [[b"idempotency-key", b"k"]]
    for chunks in ([b"abc"], [b"a", b"bc"]):
        _, body = await exchange(cache, key, *map(kind, chunks))
        assert body["body"] == b"abc"
    assert len(cache) == 1


class Counting(MemoryCache):
    """As a store of rows would: its answers are numbers of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[str] = []
        self.renewed = asyncio.Event()

    async def renew(self, key: str, **call: Any) -> bool:
        if len(self.answers) == 2:
            self.renewed.set()
        self.answers.append("renew")
        return int(await super().renew(key, **call))  # type: ignore[return-value]  # another shape, on purpose

    async def complete(self, key: str, outcome: Record, **call: Any) -> bool:
        self.answers.append("complete")
        return int(await super().complete(key, outcome, **call))  # type: ignore[return-value]  # another shape, on purpose

    async def release(self, key: str, **call: Any) -> bool:
        self.answers.append("release")
        return int(await super().release(key, **call))  # type: ignore[return-value]  # another shape, on purpose


async def test_a_cache_of_one_s_own_may_answer_in_numbers() -> None:
    cache = Counting()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async with asyncio.timeout(30):
            await cache.renewed.wait()  # for the third time: an answer that is not understood ends renewing
        await answering(scope, receive, send)

    key = [[b"idempotency-key", b"k"]]
    assert (await exchange(cache, key, app=slow, lease=0.1))[0]["status"] == 201
    assert cache.answers[-1] == "complete"
    assert (b"idempotent-replayed", b"true") in (await exchange(cache, key))[0]["headers"]

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    await exchange(cache, [[b"idempotency-key", b"other"]], app=refusing)
    assert cache.answers[-1] == "release"


@pytest.mark.parametrize("caller", [None, ""])
async def test_a_caller_without_a_name_may_be_none(caller: Any) -> None:
    calls: list[Any] = []
    processor = CommandProcessor[Any, Any](calls.append, name="n", cache=MemoryCache())
    for given in (caller, ""):
        await processor.process(1, idempotency_key="k", caller=given, raise_on_duplicate=None)  # type: ignore[arg-type]  # another shape, on purpose
    assert calls == [1]
    begun = await Subscription("c", cache=MemoryCache()).begin(Delivery("k", caller=caller))
    assert begun.run


class AsView:
    """A codec whose ``dump`` gives a view, as builders of messages do."""

    def dump(self, result: str) -> bytes:
        return memoryview(result.encode())  # type: ignore[return-value]  # another shape, on purpose

    def load(self, data: bytes) -> str:
        return data.decode()


async def test_a_codec_may_give_a_view() -> None:
    calls: list[Any] = []

    def execute(command: str) -> str:
        calls.append(command)
        return "done"

    processor = CommandProcessor[str, str](execute, name="n", cache=MemoryCache(), codec=AsView())
    assert [await processor.process("a", idempotency_key="k") for _ in range(2)] == ["done", "done"]
    assert calls == ["a"]


@pytest.mark.parametrize("payload", [bytearray(b"p"), memoryview(b"p")])
async def test_a_payload_may_be_any_kind_of_bytes(payload: Any) -> None:
    there = Subscription("c", cache=MemoryCache())
    execution = (await there.begin(Delivery("k", payload))).execution
    assert await execution.succeed(bytearray(b"{}"))  # type: ignore[arg-type]  # another shape, on purpose
    again = await there.begin(Delivery("k", b"p"))
    assert (again.decision.value, again.result) == ("duplicate", b"{}")
    mark = Delivery("k", fingerprint=memoryview(bytes(16)))  # type: ignore[arg-type]  # another shape, on purpose
    assert (await there.begin(mark)).decision.value == "key-reused"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (StoredResponse(201, [[b"a", b"b"]], bytearray(b"x"), 1.5), StoredResponse(201, ((b"a", b"b"),), b"x", 1)),  # type: ignore[arg-type]  # another shape, on purpose
        (StoredResponse(200, (), "text", 1), None),  # type: ignore[arg-type]  # another shape, on purpose
        (StoredResponse(200, (("a", "b"),), b"x", 1), None),  # type: ignore[arg-type]  # another shape, on purpose
        (StoredResponse(200, ((b"a b", b"1"),), b"x", 1), None),
        (StoredResponse(200, ((b"a", b"1\r\nb: 2"),), b"x", 1), None),
        (StoredResponse(200, ((b"A", b" 1"), (b"TE", b"x")), b"x", 1), StoredResponse(200, ((b"a", b"1"),), b"x", 1)),
        (StoredResponse(99, (), b"x", 1), None),
        (StoredResponse(205, (), b"x", 1), None),
        (StoredResponse(200, (), b"x", 10**18), None),
        (StoredResponse(200, (), b"x", float("inf")), None),  # type: ignore[arg-type]  # another shape, on purpose
        ("text", None),
        (7, None),
        (array("b", b"{}"), StoredResponse(200, (), b"{}", 0)),
    ],
)
async def test_a_success_is_recorded_whatever_its_result_is(given: Any, kept: StoredResponse | None) -> None:
    """What can't be stored is left out; to lose the success for it would have the command executed again."""
    there = Subscription("c", cache=MemoryCache())
    begun: Begun = await there.begin(Delivery("k"))
    assert await begun.execution.succeed(given) is Recording.RECORDED
    again = await there.begin(Delivery("k"))
    assert again.decision.value == "duplicate"
    assert again.response is not None
    if kept is None:
        assert again.response.body is None
    else:
        assert (again.response.status, again.response.body) == (kept.status, kept.body)
        assert isinstance(given, array) or again.response.headers == kept.headers
    assert begun.execution.succeeded
