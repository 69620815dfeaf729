"""What an attacker tries on a gateway, an item each: paths, headers, time, records. Smuggling has a file of its own.

Rules of docs/contract.md: R6.9, R7.6.
"""

import asyncio
import json
import logging
from typing import Any
from uuid import uuid4

import pytest

from oncegate.app.server import parser as inbound_parser
from oncegate.cache.codec import encode
from oncegate.cache.record import Record, State, StoredResponse
from testing.served import raw, served
from testing.servers import RedisServer
from testing.upstreams import OK, Upstream, answering

PATIENCE = 20.0


async def test_no_spelling_of_a_path_slips_past_the_route_that_requires_a_key() -> None:
    """As a servlet container, Node.js or a file system may read it; what has a key goes out exactly as it came."""
    routes = [{"path": "/payments*", "on_missing_key": "reject"}]
    spellings = [
        b"/payments",
        b"//payments",
        b"/./payments",
        b"/x/../payments",
        b"/%70ayments",
        b"/%2e/payments",
        b"/x/%2e%2e/payments",
        b"/%2fpayments",
        b"/x%2f..%2fpayments",
        b"/payments%2f1",
        b"/payments/",
        b"/payments?x=1",
        b"/payments%3fx",
        b"/payments;v=1",
        b"/;/payments",
        b"/x/..;/payments",
        b"/x%5c..%5cpayments",
        b"/payments%00",
        b"/payments%20",
        b"http://elsewhere/payments",
        b"http://elsewhere//x/../payments",
    ]
    request = b"POST %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%bContent-Length: 0\r\n\r\n"
    async with Upstream(answering(OK)) as upstream, served(upstream.url, routes=routes) as (client, _):
        for path in spellings:
            answer = await raw(client, request % (path, b""))
            assert b'"code":"key-missing"' in answer, path
        assert upstream.arrivals == 0
        assert (await raw(client, request % (b"/x/../%70ayments;v=1", b"Idempotency-Key: a\r\n"))).startswith(
            b"HTTP/1.1 200"
        )
        assert upstream.requests[0].line == "POST /x/../%70ayments;v=1 HTTP/1.1"


@pytest.mark.parametrize("path", ["/_oncegate/../payments", "/_oncegate/%2e%2e/payments", "/x/../_oncegate/healthz"])
async def test_the_gateways_own_paths_are_taken_as_they_come(path: str) -> None:
    """Below the prefix nothing is forwarded; what only resolves to it is the upstream's."""
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        answer = await raw(client, f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        own = path.startswith("/_oncegate")
        assert answer.startswith(b"HTTP/1.1 404" if own else b"HTTP/1.1 200")
        assert upstream.arrivals == (0 if own else 1)


INJECTED = [
    b"a\r\nX-Injected: 1",
    b"a\nX-Injected: 1",
    b"a\rX-Injected: 1",
    b"a\0",
    b'"a\x0b"',
    b'"a\x85X-Injected: 1"',
]


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"Prefer", b"Idempotency-Raise-On-Duplicate", b"X-Any"])
async def test_no_header_is_injected_by_what_is_echoed_or_forwarded(name: bytes) -> None:
    """A line break in a value is another field line of the client's own, or the end of the request: never one of ours."""
    request = b"POST /pay HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%b: %b\r\nContent-Length: 0\r\n\r\n"
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        for value in INJECTED:
            answer = await raw(client, request % (name, value))
            assert b"x-injected" not in answer.lower().partition(b"\r\n\r\n")[0], value
            assert answer.count(b"HTTP/1.1") == 1
        for arrived in upstream.requests:
            assert all("\n" not in text and "\0" not in text for _, text in arrived.fields)


async def test_a_problem_does_not_repeat_what_could_be_markup_of_another_type() -> None:
    """The key comes back in the body of a problem: as JSON, and declared to be."""
    key = '"<script>alert(1)</script>"'
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        await client.post("/", headers={"Idempotency-Key": key}, content=b"1")
        answer = await client.post("/", headers={"Idempotency-Key": key}, content=b"2")
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["idempotency_key"] == key.strip('"')


async def test_many_fields_and_long_ones_are_refused_as_a_whole() -> None:
    """The bound counts all fields of a request; one request's fill doesn't count for the next on its connection."""
    head = b"GET /a HTTP/1.1\r\nHost: a\r\n%b\r\n"
    many = b"".join(b"X-%d: %b\r\n" % (number, b"v" * 500) for number in range(150))
    few = many[: inbound_parser.MAX_HEAD_BYTES // 2].rpartition(b"\r\n")[0] + b"\r\n"
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        assert (await raw(client, head % many)).startswith(b"HTTP/1.1 431 ")
        assert upstream.arrivals == 0
        twice = await raw(client, head % few + head % few + head % b"Connection: close\r\n")
        assert twice.count(b"HTTP/1.1 200") == 3


async def test_a_body_that_trickles_is_cut_off_and_claims_nothing() -> None:
    """Byte after byte, each in good time: the whole body has one time limit."""
    async with Upstream(answering(OK)) as upstream, served(upstream.url, body_timeout=0.5) as (client, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a\r\nContent-Length: 100000\r\n\r\n")

        async def trickle() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(PATIENCE):
            answer = await reader.readuntil(b"\r\n\r\n")  # the next byte may be answered with a reset
        trickling.cancel()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert upstream.arrivals == 0
        assert (await client.post("/pay", headers={"Idempotency-Key": "a"})).status_code == 200


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def rules(redis_url: str) -> dict[str, Any]:
    """Settings of a gateway with a namespace of its own on the run's Redis."""
    return {
        "cache": redis_url,
        "namespace": uuid4().hex,
        "cache_timeout": PATIENCE,
        "idempotency": {"lease": 3 * PATIENCE},
    }


def good(**more: Any) -> bytes:
    response = StoredResponse(201, more.get("headers", ((b"x-a", b"1"),)), b"poison", 0)
    return encode(Record(State.SUCCEEDED, bytes(16), more.get("fingerprint", bytes(16)), 1, response))


POISONS = {
    "newer": b"\x02" + good()[1:],
    "empty": b"",
    "noise": bytes(range(256)),
    "cut": good()[:20],
    "text": b'{"status": 200}',
}


@pytest.mark.parametrize("policy", ["fail_closed", "fail_open"])
@pytest.mark.parametrize("name", POISONS)
async def test_a_poisoned_or_newer_record_is_an_error_and_nothing_is_forwarded(
    redis_server: RedisServer, rules: dict[str, Any], name: str, policy: str
) -> None:
    rules["idempotency"]["on_cache_down"] = policy
    async with Upstream(answering(OK)) as upstream, served(upstream.url, **rules) as (client, _):
        await client.post("/", headers={"Idempotency-Key": "a"})
        (key,) = redis_server.command("KEYS", f"{rules['namespace']}:*")
        redis_server.command("SET", key, POISONS[name], "PX", 60_000)
        for _ in range(2):
            answer = await client.post("/", headers={"Idempotency-Key": "a"})
            assert (answer.status_code, answer.json()["code"]) == (500, "record-unreadable")
        assert upstream.arrivals == 1
        assert redis_server.command("GET", key) == POISONS[name], "the evidence is gone"


async def test_a_record_under_anothers_fingerprint_is_never_given(
    redis_server: RedisServer, rules: dict[str, Any]
) -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url, **rules) as (client, _):
        await client.post("/", headers={"Idempotency-Key": "a"})
        (key,) = redis_server.command("KEYS", f"{rules['namespace']}:*")
        redis_server.command("SET", key, good(fingerprint=b"x" * 16), "PX", 60_000)
        answer = await client.post("/", headers={"Idempotency-Key": "a"})
        assert answer.json()["code"] == "key-reused"


# -- logs -------------------------------------------------------------------------------------------------------------


async def test_nothing_secret_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture, rules: dict[str, Any]) -> None:
    """Keys, credentials, cookies, queries and bodies, whatever becomes of the request: refused, executed, replayed, unknown."""
    caplog.set_level(logging.DEBUG)
    marks = {kind: f"s3cret-{kind}" for kind in ("key", "bearer", "cookie", "query", "body", "answer", "field")}
    content = json.dumps({"token": marks["answer"]}).encode()
    answer = (
        b"HTTP/1.1 200 OK\r\nset-cookie: %b\r\ncontent-length: %d\r\n\r\n" % (marks["cookie"].encode(), len(content))
        + content
    )
    headers = {
        "Idempotency-Key": marks["key"],
        "Authorization": f"Bearer {marks['bearer']}",
        "Cookie": marks["cookie"],
        "X-Card": marks["field"],
    }
    broken = b"HTTP/1.1 200 OK\r\n" + marks["answer"].encode() + b"\r\n\r\n"
    async with (
        Upstream([answering(answer), answering(broken)]) as upstream,
        served(upstream.url, **rules) as (client, _),
    ):
        where = f"/?q={marks['query']}"
        for body in (marks["body"], marks["body"], "another"):
            await client.post(where, headers=headers, content=body)
        for wrong in ({"Idempotency-Key": f'"{marks["key"]}'}, {"Idempotency-Key": marks["key"] + "," + marks["key"]}):
            assert (await client.post(where, headers=headers | wrong, content=marks["body"])).status_code == 400
        upstream.peers[0].reset()
        await client.post(where, headers=headers | {"Idempotency-Key": f"{marks['key']}-2"}, content=marks["body"])
        await raw(client, f"GET /?{marks['query']} HTTP/1.1\r\nX {marks['field']}: 1\r\n\r\n".encode())
        await raw(client, b"POST / HTTP/1.1\r\nHost: a\r\nX: " + marks["field"].encode() * 10_000 + b"\r\n\r\n")
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore", "asyncio"))]
    assert any(record.name.startswith("oncegate") for record in ours)
    for record in ours:
        text = logging.Formatter().format(record) + repr(record.__dict__)
        assert [mark for mark in marks.values() if mark in text] == [], text[:300]
