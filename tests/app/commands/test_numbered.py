"""Numbers and expected versions on asynchronous routes, on the fast path and off it, on a real Redis.

Rules of docs/contract.md: R4.28, R4.29, R4.30, R4.31, R4.32, R8.28, R8.29, R8.30, R8.31.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any
from uuid import uuid4

import httpx
import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.redis.store import RedisCache
from oncegate.cache.redis.streams.append import Numbering, append_entry
from oncegate.cache.redis.streams.stream import Command, numbers_key, stream_key
from testing.served import served
from testing.servers import RedisServer
from testing.upstreams import Upstream, answering

ROUTES: list[dict[str, Any]] = [
    {
        "path": "/orders/*/cancel",
        "mode": "async",
        "on_missing_key": "reject",
        "aggregate": "path",
        "require_version": True,
    },
    {"path": "/orders/*", "mode": "async", "on_missing_key": "reject", "aggregate": "path"},
    {
        "path": "/accounts",
        "mode": "either",
        "on_missing_key": "reject",
        "aggregate": "header:X-Account",
        "stream": "accounts",
    },
    {"path": "/plain", "mode": "async", "on_missing_key": "reject"},
]
ALICE = {"authorization": "Bearer alice"}
OK = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok"


class Door:
    """A gateway, and what is in its streams."""

    def __init__(self, client: httpx.AsyncClient, gateway: Gateway, server: RedisServer, namespace: str) -> None:
        self.client = client
        self.gateway = gateway
        self.redis = server.client()
        self.namespace = namespace

    async def send(self, path: str, key: str | None = None, body: bytes = b"{}", /, **fields: Any) -> httpx.Response:
        """POST; names of ``fields`` with ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        headers: Any = {"idempotency-key": key or uuid4().hex, **ALICE, **named}
        return await self.client.post(path, content=body, headers=headers)

    def entries(self, name: str = "commands") -> list[tuple[str, Command]]:
        found: Any = self.redis.xrange(stream_key(self.namespace, name))
        return [(entry.decode(), Command.read(fields)) for entry, fields in found]

    def given(self, name: str = "commands") -> list[tuple[str, int | None]]:
        """Aggregate and number of each entry, in their order."""
        return [(command.aggregate, command.sequence) for _, command in self.entries(name)]

    def forget(self, answer: httpx.Response) -> None:
        """As where the gateway died before it recorded the acceptance, so long ago that the doubt is over: no record."""
        assert self.redis.delete(f"{self.namespace}:{answer.json()['command']}")


@asynccontextmanager
async def opened(server: RedisServer, fast_path: bool, **settings: Any) -> AsyncIterator[Door]:
    given: dict[str, Any] = {"namespace": uuid4().hex, "cache_timeout": 10.0, "routes": ROUTES, **settings}
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, cache=server.url, **given) as (client, gateway),
    ):
        if not fast_path:
            gateway._fast_path = gateway.direct = None
        yield Door(client, gateway, server, given["namespace"])


@pytest.fixture(params=[True, False], ids=["fast path", "task"])
def fast_path(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def door(redis_server: RedisServer, fast_path: bool) -> AsyncIterator[Door]:
    async with opened(redis_server, fast_path) as there:
        yield there


async def test_each_command_gets_its_aggregates_next_number(door: Door) -> None:
    answers = [await door.send(f"/orders/{order}") for order in ("7", "8", "7", "7")]
    assert [answer.status_code for answer in answers] == [202] * 4
    assert [answer.json()["sequence"] for answer in answers] == [1, 1, 2, 3]
    assert door.given() == [("7", 1), ("8", 1), ("7", 2), ("7", 3)]
    assert [entry for entry, _ in door.entries()] == [answer.json()["position"] for answer in answers]
    status = await door.client.get(answers[2].headers["location"], headers=ALICE)
    assert status.json()["sequence"] == 2


async def test_operators_see_aggregate_and_number_while_the_entry_is_there_and_the_number_while_the_202_is(
    redis_server: RedisServer,
) -> None:
    async with opened(redis_server, True, admin_token="of-the-operators-of-this-one") as door:
        command = (await door.send("/orders/caf%C3%A9")).json()["command"]

        async def shown() -> tuple[str | None, int | None]:
            operators = {"authorization": "Bearer of-the-operators-of-this-one"}
            found = (
                await door.client.get(f"/_oncegate/dead-letters/{command}?stream=commands", headers=operators)
            ).json()
            return found["aggregate"], found["sequence"]

        assert await shown() == ("caf\xe9", 1)
        door.redis.delete(stream_key(door.namespace, "commands"))
        assert await shown() == (None, 1)
        command = (await door.send("/plain")).json()["command"]
        assert await shown() == (None, None)


async def test_a_retry_gets_the_same_202_and_no_number(door: Door) -> None:
    first = await door.send("/orders/7", "k", expected_version="0")
    await door.send("/orders/7")
    again = await door.send("/orders/7", "k", expected_version="0")
    assert (again.status_code, again.content) == (202, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert door.given() == [("7", 1), ("7", 2)]


async def test_a_route_without_an_aggregate_is_as_ever(door: Door) -> None:
    accepted = await door.send("/plain", expected_version="4", if_match='"4"', if_none_match="*")
    assert (accepted.status_code, list(accepted.json())) == (202, ["status", "position", "command"])
    ((_, command),) = door.entries()
    assert (command.aggregate, command.sequence) == ("", None)
    assert not door.redis.exists(numbers_key(door.namespace, "commands"))
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        passed = await client.post("/any", headers={"expected-version": "x", "if-match": '"4"'})
        assert passed.status_code == 201
        assert {("expected-version", "x"), ("if-match", '"4"')} <= set(upstream.requests[0].fields)


CONFLICTS: list[tuple[dict[str, str], int, str, int]] = [
    ({"expected_version": "1"}, 409, "version-conflict", 1),
    ({"expected_version": "3"}, 409, "version-conflict", 3),
    ({"if_match": '"1"'}, 412, "precondition-failed", 1),
    ({"if_none_match": "*"}, 412, "precondition-failed", 0),
]


async def test_another_version_than_the_one_expected_is_refused_and_the_key_is_free(door: Door) -> None:
    for _ in range(2):
        assert (await door.send("/orders/7")).status_code == 202
    for fields, status, code, expected in CONFLICTS:
        refused = await door.send("/orders/7", "k", **fields)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        assert (refused.json()["expected"], refused.json()["current"]) == (expected, 2)
        assert (refused.json()["retryable"], "retry-after" in refused.headers) == (False, False)
        assert not door.redis.exists(f"{door.namespace}:{refused.json()['record']}")
    assert door.given() == [("7", 1), ("7", 2)]
    accepted = await door.send("/orders/7", "k", expected_version="2")
    assert (accepted.status_code, accepted.json()["sequence"]) == (202, 3)
    metrics = (await door.client.get("/_oncegate/metrics")).text
    assert 'oncegate_submissions_total{outcome="conflict",route="/orders/*"} 4.0' in metrics


MET: list[list[dict[str, str]]] = [
    [{"expected_version": "0"}, {"expected_version": "1"}],
    [{"if_none_match": "*"}, {"if_match": '"1"'}],
    [{"if_match": '"0"'}, {"if_match": "*"}],
]


async def test_the_version_that_is_expected_is_accepted(door: Door) -> None:
    for order, both in enumerate(MET):
        assert (await door.send(f"/orders/{order}", if_match="*")).json()["expected"] == "*"
        for number, fields in enumerate(both, 1):
            answer = await door.send(f"/orders/{order}", **fields)
            assert (answer.status_code, answer.json().get("sequence")) == (202, number)


MALFORMED: list[dict[str, str]] = [
    {"expected_version": "04"},
    {"expected_version": "-1"},
    {"expected_version": ""},
    {"expected_version": '"4"'},
    {"expected_version": "9223372036854775808"},
    {"expected_version": "4", "if_match": '"4"'},
    {"if_match": '"4"', "if_none_match": "*"},
    {"if_match": 'W/"4"'},
    {"if_match": '"4", "5"'},
    {"if_match": "4"},
    {"if_none_match": '"4"'},
]


async def test_a_malformed_version_is_400_before_anything_is_claimed(door: Door) -> None:
    for fields in MALFORMED:
        refused = await door.send("/orders/7", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "version-invalid"), fields
        assert "record" not in refused.json()
    assert not door.redis.keys(f"{door.namespace}:*")
    assert door.entries() == []


async def test_where_a_version_is_required_one_without_is_428(door: Door) -> None:
    refused = await door.send("/orders/7/cancel")
    assert (refused.status_code, refused.json()["code"]) == (428, "precondition-required")
    assert not door.redis.keys(f"{door.namespace}:*")
    assert (await door.send("/orders/7")).status_code == 202
    accepted = await door.send("/orders/7/cancel", expected_version="1")
    assert (accepted.status_code, accepted.json()["sequence"]) == (202, 2), "routes of a stream share its aggregates"
    assert door.given() == [("7", 1), ("7", 2)]


async def test_aggregates_are_told_apart_octet_by_octet(door: Door) -> None:
    paths = ["a", "A", "a%20", "%20a", "%C3%A9", "e%CC%81", "x" * 499 + "y", "x" * 499 + "z", "a/b", "*", "%2a%2a"]
    ids = ["a", "A", "a ", " a", "\xe9", "e\u0301", "x" * 499 + "y", "x" * 499 + "z", "a/b", "*", "**"]
    for path in paths:
        assert (await door.send(f"/orders/{path}")).json()["sequence"] == 1
    assert door.given() == [(each, 1) for each in ids]
    assert (await door.send("/orders/%61")).json()["sequence"] == 2, (
        "one id, spelled in two ways (RFC 3986 section 6.2.2.2)"
    )


async def test_a_path_that_names_no_aggregate_is_400(door: Door) -> None:
    for path in ("/orders/", "/orders/%ff", "/orders/%00", "/orders/a%0ab", "/Orders/7"):
        refused = await door.send(path)
        assert (refused.status_code, refused.json()["code"]) == (400, "aggregate-invalid"), path
    assert door.entries() == []


async def test_a_header_may_name_the_aggregate(door: Door) -> None:
    for number in (1, 2):
        sent = await door.send("/accounts", x_account="caf\xe9".encode(), prefer="respond-async")
        assert (sent.status_code, sent.json()["sequence"]) == (202, number)
    assert door.given("accounts") == [("caf\xe9", 1), ("caf\xe9", 2)]
    for fields in ({}, {"x_account": ""}, {"x_account": b"\xff"}):
        refused = await door.send("/accounts", prefer="respond-async", **fields)
        assert (refused.status_code, refused.json()["code"]) == (400, "aggregate-invalid")
    executed = await door.send("/accounts", expected_version="x", if_match='"1"', if_none_match="*")
    assert executed.status_code == 201, "what is executed at once is the upstream's to judge"


async def test_a_full_stream_gives_no_number(redis_server: RedisServer, fast_path: bool) -> None:
    async with opened(redis_server, fast_path, stream_limit=2) as door:
        for _ in range(2):
            assert (await door.send("/orders/7")).status_code == 202
        assert (await door.send("/orders/7", "k")).json()["code"] == "overloaded"
        assert (await door.send("/orders/7", "k", expected_version="1")).json()["code"] == "version-conflict"
        door.redis.xtrim(stream_key(door.namespace, "commands"), maxlen=0)
        assert (await door.send("/orders/7", "k", expected_version="2")).json()["sequence"] == 3


async def test_an_entry_that_redis_refuses_gives_no_number(door: Door) -> None:
    stream = stream_key(door.namespace, "commands")
    assert (await door.send("/orders/7")).json()["sequence"] == 1
    door.redis.xadd(stream, {"v": "1"}, id=f"{2**64 - 1}-{2**64 - 1}")  # there is no id behind that
    refused = await door.send("/orders/7", "k")
    assert (refused.status_code, refused.json()["code"]) == (503, "cache-unavailable")
    door.redis.delete(stream)
    assert (await door.send("/orders/7", "k", expected_version="1")).json()["sequence"] == 2


async def test_a_command_that_was_appended_gets_its_own_number_again_whatever_has_come_since(door: Door) -> None:
    first = await door.send("/orders/7", "k", expected_version="0")
    assert (await door.send("/orders/7")).json()["sequence"] == 2
    for number in ("0", "2"):
        door.forget(first)
        again = await door.send("/orders/7", "k", expected_version=number)
        assert (again.status_code, again.content, "idempotent-replayed" in again.headers) == (202, first.content, False)
    assert door.given() == [("7", 1), ("7", 2)]
    door.redis.xtrim(stream_key(door.namespace, "commands"), maxlen=0)
    door.forget(first)
    assert (await door.send("/orders/7", "k", expected_version="0")).content == first.content, "processed meanwhile"
    door.forget(first)
    other = await door.send("/orders/7", "k", b"other", expected_version="2")
    assert other.json()["sequence"] == 3, "another payload under a free key is another command"


async def test_a_key_that_is_free_again_after_its_time_gets_another_number(
    redis_server: RedisServer, fast_path: bool
) -> None:
    async with opened(redis_server, fast_path, idempotency={"ttl": 0.2}) as door:
        first = await door.send("/orders/7", "k")
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110 - Redis's clock is waited for
                again := await door.send("/orders/7", "k")
            ).content == first.content:
                await asyncio.sleep(0.05)
        assert again.json()["sequence"] == 2
        assert door.given() == [("7", 1), ("7", 2)]


async def test_what_is_known_of_commands_goes_after_its_time_and_numbers_stay(redis_server: RedisServer) -> None:
    stream = stream_key(uuid4().hex, "commands")
    numbers = f"{stream}:numbers".encode()
    cache = RedisCache.from_url(redis_server.url, timeout=20)
    try:
        for number in range(15):
            commands = [blake2b(b"%d %d" % (number, each), digest_size=20).digest() for each in range(100)]
            given = [
                Numbering(numbers, b"%016d" % (each % 50), command, b"", known_ms=1, kept_ms=1)
                for each, command in enumerate(commands)
            ]
            await asyncio.gather(
                *[append_entry(cache.client, stream, [b"a", b"b"], limit=10**6, numbering=each) for each in given]
            )
    finally:
        await cache.close()
    held: Any = redis_server.client().hgetall(numbers)
    assert {value for field, value in held.items() if len(field) == 16} == {b"30"}
    assert 50 < len(held) < 1000, "of 1500 commands, those of late and some more"
