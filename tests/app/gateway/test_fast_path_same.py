"""With the fast path and without it, a gateway gives the same answers, sends the upstream the same, and records the same."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.store import Cache
from testing.upstreams import Behaviour, Peer, Upstream
from tests.app.fast_path import CREATED, Talk, by_path, gateway_at, keyed, request, talking
from tests.app.fast_path_cases import ANSWERS, ROUTES, RULES, each_way, plain

pytestmark = pytest.mark.both_loops

Play = Callable[[Talk, Gateway, int, Upstream], Awaitable[list[bytes]]]
"""What clients do; what they get."""


async def in_turn(talk: Talk, _: Gateway, port: int, __: Upstream) -> list[bytes]:
    got = []
    for data in plain():
        answer = await talk.ask(data)
        if talk.reader.at_eof() or talk.writer.is_closing() or not answer or b"connection: close" in answer.lower():
            talk.writer.transport.abort()
            talk.reader, talk.writer = await asyncio.open_connection("127.0.0.1", port)
        got.append(answer)
    return got


async def pipelined(talk: Talk, _: Gateway, __: int, ___: Upstream) -> list[bytes]:
    asked = [
        data for path in ("/200", "/401", "/500", "/204", "/chunked", "/large", "/cookies") for data in each_way(path)
    ]
    talk.writer.write(b"".join(asked))
    return [await talk.answer(is_head=data.startswith(b"HEAD")) for data in asked]


def gated() -> tuple[Play, Behaviour]:
    """Others ask while a request is in flight; its client, and one that passes through, leave meanwhile."""
    go_on = asyncio.Event()

    async def behave(peer: Peer) -> None:
        while True:
            if "/slow" in (await peer.request()).line:
                await go_on.wait()
            await peer.send(CREATED)

    async def play(talk: Talk, _: Gateway, port: int, upstream: Upstream) -> list[bytes]:
        got = [await talk.ask(keyed()), await talk.ask(request("GET"))]
        async with talking(port) as slow, talking(port) as passing, talking(port) as waiting, talking(port) as late:
            slow.writer.write(keyed("s", path="/slow"))
            await upstream.received(3)
            got += [await talk.ask(keyed("s", body, "/slow")) for body in (b"body", b"other")]
            got.append(await talk.ask(keyed("s", path="/slow", idempotency_raise_on_duplicate="1")))
            passing.writer.write(request("GET", "/slow"))
            await upstream.received(4)
            late.writer.write(keyed("c", path="/slow"))
            await upstream.received(5)
            waiting.writer.write(keyed("s", path="/slow", prefer="wait=20"))
            passing.leave()
            late.leave()
            await asyncio.sleep(0.1)
            go_on.set()
            got += [await slow.answer(), await waiting.answer()]
            got.append(await talk.ask(keyed("c", path="/slow", prefer="wait=20")))
            slow.writer.write(keyed("cut", b"whole")[:-2])
            slow.leave()
        got.append(await talk.ask(keyed("cut", b"whole")))
        return got

    return play, behave


PLAYS: dict[str, Callable[[], tuple[Play, Behaviour]]] = {
    "in turn": lambda: (in_turn, by_path(ANSWERS)),
    "pipelined": lambda: (pipelined, by_path(ANSWERS)),
    "at once": gated,
}


@pytest.mark.parametrize("cache", ["memory", "redis"])
@pytest.mark.parametrize("name", PLAYS)
async def test_nothing_differs(name: str, cache: str, redis_url: str) -> None:
    url = "memory://" if cache == "memory" else redis_url
    (answers, sent, kept), (as_answers, as_sent, as_kept) = [
        await played(*PLAYS[name](), url, fast_path=fast_path) for fast_path in (True, False)
    ]
    for number, (one, other) in enumerate(zip(answers, as_answers, strict=True)):
        assert one == other, number
    assert sent == as_sent
    assert kept == as_kept
    assert len(kept) > 2


async def played(
    play: Play, behave: Behaviour, cache: str, *, fast_path: bool
) -> tuple[list[bytes], list[bytes], list[str]]:
    """The answers, what the upstream received, and the records; all without what is of the moment."""
    namespace = uuid4().hex
    async with (
        Upstream(behave) as upstream,
        gateway_at(upstream.url, cache, fast_path=fast_path, namespace=namespace, idempotency=RULES, routes=ROUTES) as (
            talk,
            gateway,
            port,
        ),
    ):
        answers = [settled(answer) for answer in await play(talk, gateway, port, upstream)]
        kept = await records(gateway._cache, namespace)
    return answers, [settled(request.raw) for request in upstream.requests], kept


_OF_THE_MOMENT = [
    (re.compile(rb"(?i)\r\ndate: [^\r]*"), b"\r\ndate: then"),
    (re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), b"uuid"),
    (re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]*\+00:00"), b"then"),
    (re.compile(rb"127\.0\.0\.1:[0-9]+"), b"address"),
    (re.compile(rb"; ttl=[0-9]+"), b"; ttl=N"),
    (re.compile(rb"\b[0-9a-f]{32}\b"), b"key"),
    (re.compile(rb'"record":"[^"]*"'), b'"record":"id"'),
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
