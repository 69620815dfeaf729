"""With the fast path and without it, a gateway gives the same answers, sends the upstream, records and counts the same.

Rules of docs/contract.md: R2.22, R2.23.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.store import Cache
from testing.inside import cache_of
from testing.upstreams import Behaviour, Peer, Upstream
from tests.app.fast_path import CREATED, Talk, by_path, ends, gateway_at, keyed, request, talking, tasks_made
from tests.app.fast_path_cases import ANSWERS, ROUTES, RULES, each_way, plain

pytestmark = pytest.mark.both_loops

Play = Callable[[Talk, Gateway, int, Upstream], Awaitable[list[bytes]]]
"""What clients do; what they get."""


async def in_turn(talk: Talk, _: Gateway, port: int, __: Upstream) -> list[bytes]:
    got = []
    for data in plain():
        answer = await talk.exchange(data)
        if talk.reader.at_eof() or talk.writer.is_closing() or not answer or b"connection: close" in answer.lower():
            talk.writer.transport.abort()
            talk.reader, talk.writer = await asyncio.open_connection("127.0.0.1", port)
        got.append(answer)
    return got


async def pipelined(talk: Talk, _: Gateway, __: int, ___: Upstream) -> list[bytes]:
    requests = [
        data for path in ("/200", "/401", "/500", "/204", "/chunked", "/large", "/cookies") for data in each_way(path)
    ]
    talk.writer.write(b"".join(requests))
    return [await talk.answer(is_head=data.startswith(b"HEAD")) for data in requests]


def gated() -> tuple[Play, Behaviour]:
    """Others ask while a request is in flight; its client, and one that passes through, leave meanwhile."""
    go_on = asyncio.Event()

    async def behave(peer: Peer) -> None:
        while True:
            if "/slow" in (await peer.request()).line:
                await go_on.wait()
            await peer.send(CREATED)

    async def play(talk: Talk, _: Gateway, port: int, upstream: Upstream) -> list[bytes]:
        got = [await talk.exchange(keyed()), await talk.exchange(request("GET"))]
        async with (
            talking(port) as slow,
            talking(port) as passing,
            talking(port) as waiting,
            talking(port) as late,
            talking(port) as other,
            talking(port) as unasked,
        ):
            slow.writer.write(keyed("s", path="/slow"))
            await upstream.received(3)
            got += [await talk.exchange(keyed("s", body, "/slow")) for body in (b"body", b"other")]
            got.append(await talk.exchange(keyed("s", path="/slow", idempotency_raise_on_duplicate="1")))
            passing.writer.write(request("GET", "/slow"))
            await upstream.received(4)
            late.writer.write(keyed("c", path="/slow"))
            await upstream.received(5)
            other.writer.write(keyed("w", path="/waits/slow"))
            await upstream.received(6)
            unasked.writer.write(keyed("w", path="/waits/slow"))
            got.append(await talk.exchange(keyed("w", path="/waits/slow", prefer="wait=0")))
            waiting.writer.write(keyed("s", path="/slow", prefer="wait=20"))
            passing.leave()
            late.leave()
            await asyncio.sleep(0.1)
            go_on.set()
            got += [await slow.answer(), await waiting.answer(), await other.answer(), await unasked.answer()]
            got.append(await talk.exchange(keyed("c", path="/slow", prefer="wait=20")))
            slow.writer.write(keyed("cut", b"whole")[:-2])
            slow.leave()
        got.append(await talk.exchange(keyed("cut", b"whole")))
        return got

    return play, behave


STAYING = [path for path, data in ANSWERS.items() if data and ends(data)]
"""A closing connection may be taken for the next request before its end has come, or may not: "in turn" has the others."""
COMMON = ["/200", "/202", "/401", "/402", "/500", "/large"]
PATHS = ["/payments/1", *(route["path"].replace("*", "1") for route in ROUTES)]
KEYS = ["a", "a", "a", '"a"', '"b c"', "d", "", '"', "x" * 300, None, None]
BODIES = [b"{}", b"{}", b"{}", b'{ "a" : 1 }', b'{"a":1}', b"", b"x" * 200]
METHODS = ["POST", "POST", "POST", "POST", "PATCH", "GET", "HEAD", "DELETE", "OPTIONS"]
FIELDS = [
    ("authorization", "Bearer a"),
    ("authorization", "Bearer b"),
    ("idempotency_attempt", "7"),
    ("idempotency_raise_on_duplicate", "?1"),
    ("prefer", "wait=1"),
    ("x_key", "a"),
    ("connection", "close, x-dropped"),
    ("x_dropped", "1"),
]


def anything(random: Random) -> tuple[str | None, bytes]:
    """Some request, and its key: few keys, paths and payloads, so that they meet; many ways to be unusual, each of them rare."""
    path, key = random.choice(PATHS), random.choice(KEYS)
    if key is not None and key.isalpha() and random.random() < 0.9:  # else it was used for another path
        key += path.strip("/")
    fields = {"x_reply": random.choice(STAYING if random.random() < 0.3 else COMMON)}
    fields |= {name: value for name, value in FIELDS if random.random() < 0.1}
    if key is not None:
        fields["idempotency_key"] = key
    url = path + random.choice(["", "", "", "?q=%20", "//"])
    return key, request(random.choice(METHODS), url, random.choice(BODIES), **fields)


async def at_random(seed: int, _: Talk, __: Gateway, port: int, ___: Upstream) -> list[bytes]:
    """Any requests, often repeated, often several at once: those that no other one beside them can be in the way of."""

    async def alone(data: bytes) -> bytes:
        async with talking(port) as talk:
            return await talk.exchange(data)

    random, got = Random(seed), []
    sent: list[tuple[str | None, bytes]] = []
    for _number in range(40):
        one = random.choice(sent) if sent and random.random() < 0.4 else anything(random)
        some = [one, *(anything(random) for _ in range(random.choice([0, 0, 4])))]
        apart = {key and key.strip('"'): data for key, data in some}
        sent += apart.items()
        got += await asyncio.gather(*map(alone, apart.values()))
    return got


PLAYS: dict[str, Callable[[], tuple[Play, Behaviour]]] = {
    "in turn": lambda: (in_turn, by_path(ANSWERS)),
    "pipelined": lambda: (pipelined, by_path(ANSWERS)),
    "at once": gated,
    **{
        f"at random {seed}": partial(lambda seed: (partial(at_random, seed), by_path(ANSWERS)), seed)
        for seed in range(4)
    },
}


CACHES = {name: ["memory", "redis"] for name in PLAYS} | {
    f"at random {seed}": ["redis" if seed % 2 else "memory"] for seed in range(4)
}


@pytest.mark.parametrize(("name", "cache"), [(name, cache) for name, caches in CACHES.items() for cache in caches])
async def test_nothing_differs(name: str, cache: str, redis_url: str) -> None:
    url = "memory://" if cache == "memory" else redis_url
    (answers, sent, kept, tasks), (as_answers, as_sent, as_kept, as_tasks) = [
        await played(*PLAYS[name](), url, fast_path=fast_path) for fast_path in (True, False)
    ]
    for number, (one, other) in enumerate(zip(answers, as_answers, strict=True)):
        assert one == other, number
    if name.startswith("at random"):  # at once: in any order
        sent.sort()
        as_sent.sort()
    assert sent == as_sent
    assert kept == as_kept
    assert len(kept) > 2
    assert tasks < as_tasks, "nothing went by the fast path"


@pytest.mark.parametrize("name", ["in turn", "pipelined"])
async def test_with_an_access_log_nothing_differs_but_ids(name: str, tmp_path: Path) -> None:
    """Requests that are followed go through other classes of the server's."""
    log = tmp_path / "log"
    play, behave = PLAYS[name]()
    answers, sent, kept, _ = await played(play, behave, "memory://", fast_path=True)
    followed = {"access_log": "json", "access_log_file": str(log)}
    as_answers, as_sent, as_kept, _ = await played(play, behave, "memory://", fast_path=True, **followed)
    assert list(map(without_id, answers)) == list(map(without_id, as_answers))
    assert sent == list(map(without_id, as_sent))
    assert kept == as_kept
    assert all(_ID.search(request) for request in as_sent)
    assert log.read_bytes().count(b"\n") == len(answers) + 1, "the metrics are an operation"


_ID = re.compile(rb"(?i)\r\nx-request-id: request")


def without_id(data: bytes) -> bytes:
    return _ID.sub(b"", data)


async def played(
    play: Play, behave: Behaviour, cache: str, *, fast_path: bool, **settings: Any
) -> tuple[list[bytes], list[bytes], list[str], int]:
    """The answers, what the upstream received, the records and metrics, all without what is of the moment; and how many tasks."""
    namespace = uuid4().hex
    async with (
        Upstream(behave) as upstream,
        gateway_at(
            upstream.url,
            cache,
            fast_path=fast_path,
            namespace=namespace,
            idempotency=RULES,
            routes=ROUTES,
            **settings,
        ) as (talk, gateway, port),
    ):
        with tasks_made() as tasks:
            answers = [settled(answer) for answer in await play(talk, gateway, port, upstream)]
        kept = await records(cache_of(gateway), namespace)
        async with talking(port) as operator:
            lines = (await operator.exchange(request("GET", "/_oncegate/metrics"))).decode().splitlines()
        kept += [line for line in lines if line.startswith("oncegate_") and not _SIZED.search(line)]
    return answers, [settled(request.raw) for request in upstream.requests], kept, len(tasks)


_SIZED = re.compile("seconds|bytes|build|start|config")
"""Metrics of the moment."""
_OF_THE_MOMENT = [
    (re.compile(rb"(?i)\r\ndate: [^\r]*"), b"\r\ndate: then"),
    (re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), b"uuid"),
    (re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]*\+00:00"), b"then"),
    (re.compile(rb"127\.0\.0\.1:[0-9]+"), b"address"),
    (re.compile(rb"; ttl=[0-9]+"), b"; ttl=N"),
    (re.compile(rb"\b[0-9a-f]{32}\b"), b"key"),
    (re.compile(rb'"record":"[^"]*"'), b'"record":"id"'),
    (re.compile(rb"\b[0-9a-f]{12}-[0-9a-f]{8}\b"), b"request"),
]


def settled(data: bytes) -> bytes:
    """What does not depend on the moment: ids, keys that were made here, dates."""
    for pattern, text in _OF_THE_MOMENT:
        data = pattern.sub(text, data)
    return data


async def records(cache: Cache, namespace: str) -> list[str]:
    """Every record; the fingerprint tells them apart, since some keys are made by the gateway."""
    found, cursor, more = [], "", True
    while more:
        page = await cache.scan(namespace, cursor=cursor)
        for key in page.keys:
            claim = await cache.get(key)
            assert claim is not None
            record = claim.record
            response = record.response._replace(completed_at_ms=0) if record.response else None
            minutes = round(claim.remaining_ms / 120_000)
            assert record.trace.took_ms is not None, "still in flight"
            note = settled(record.trace.note.encode())
            found.append(str((record.fingerprint, record.state, record.attempt, response, minutes, note)))
        cursor, more = page.cursor, bool(page.cursor)
    return sorted(found)
