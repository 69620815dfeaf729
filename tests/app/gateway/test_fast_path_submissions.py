"""A submission takes the fast path too: its append is sent by callback, and what lasts, or fails, is answered as by a task.

Rules of docs/contract.md: R8.1, R8.8, R8.9.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.redis.connection import pipe
from oncegate.cache.redis.streams.stream import stream_key
from oncegate.middleware.rules import policy
from testing.inside import attempts_of, fast_path_of, redis_cache_of, transport_of
from testing.servers import RedisServer
from testing.upstreams import Upstream, answering
from testing.waiting import until
from tests.app.fast_path import CREATED, Talk, answered, gateway_at, in_flight_of, keyed, tasks_made
from tests.app.gateway.test_fast_path_same import settled
from tests.cache.inside import session_of, timed

ROUTES = [{"path": "/later", "mode": "async", "on_missing_key": "reject"}, {"path": "/either", "mode": "either"}]
REPLAYED = b"idempotent-replayed: true"
ACCEPTED = b"HTTP/1.1 202 "
_IDS = re.compile(rb'("position":"|"command":"|/commands/)[^"\r]*')


@asynccontextmanager
async def ready(redis: RedisServer, **settings: Any) -> AsyncIterator[tuple[Talk, Gateway, Callable[[], int]]]:
    """A gateway whose connections are warm, and how many entries its stream has."""
    namespace = uuid4().hex
    stream = stream_key(namespace, "commands")
    settings = {"namespace": namespace, "routes": ROUTES, **settings}
    async with (
        Upstream(answering(CREATED)) as upstream,
        gateway_at(upstream.url, redis.url, **settings) as (talk, gateway, _),
    ):
        assert (await talk.exchange(keyed(path="/later"))).startswith(ACCEPTED)
        yield talk, gateway, lambda: int(redis.command("XLEN", stream))
        if gateway.direct is not None:
            in_flight = in_flight_of(gateway)
            await until(lambda: in_flight.slots.taken == len(attempts_of(in_flight)) == 0, "no slot is taken")


def between(gateway: Gateway, event: Callable[[], None]) -> None:
    """Have ``event`` called when the next claim is won, before its entry is appended."""
    fast_path = fast_path_of(gateway)
    submit = fast_path._submit
    assert submit is not None

    def start(*call: Any) -> None:
        fast_path._submit = submit
        event()
        submit(*call)

    fast_path._submit = start


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("path", ["/later", "/either"])
async def test_a_submission_costs_no_task(redis: RedisServer, path: str) -> None:
    async with ready(redis) as (talk, _, entries):
        with tasks_made() as made:
            assert (await talk.exchange(keyed("k", path=path, prefer="respond-async"))).startswith(ACCEPTED)
            assert REPLAYED in await talk.exchange(keyed("k", path=path, prefer="respond-async"))
            assert b"HTTP/1.1 422 " in await talk.exchange(keyed("k", b"other", path, prefer="respond-async"))
        assert set(made) <= {"MemorySamples._sample"}  # for all submissions of a quarter of a second
        assert entries() == 2


async def test_it_is_answered_as_by_a_task(redis: RedisServer) -> None:
    requests = [
        keyed(key, path="/later", prefer=prefer) for key in ("a", "b", "c") for prefer in ("wait=1", "respond-async")
    ]
    requests += [keyed("a", b"other", "/later"), keyed("a", path="/either"), keyed("d", path="/either")]
    requests += [keyed("e", path="/either", prefer="respond-async", content_type="a/b", origin="https://a")]
    answers = []
    for fast_path in (True, False):
        async with ready(redis, fast_path=fast_path, stream_limit=3, cors={"origins": ["https://a"]}) as (talk, _, _):
            answers.append([_IDS.sub(rb"\1id", settled(await talk.exchange(data))) for data in requests])
    assert answers[0] == answers[1]
    assert [int(answer.split(b" ")[1]) for answer in answers[0]] == [202] * 4 + [503] * 2 + [422, 422, 201, 503]


async def test_one_that_lasts_is_accepted_once(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "_SOON", 0.05)
    async with ready(redis) as (talk, gateway, entries):
        with tasks_made() as made:
            between(gateway, redis.pause)
            talk.writer.write(keyed("k", path="/later"))
            await until(lambda: "AppRun._run" in made, "it has left the fast path")
            redis.resume()
            assert (await talk.answer()).startswith(ACCEPTED)
        assert REPLAYED in await talk.exchange(keyed("k", path="/later"))
        assert entries() == 2


@pytest.mark.usefixtures("unhurried")
async def test_one_that_redis_does_not_answer_may_be_sent_again(redis: RedisServer) -> None:
    async with ready(redis) as (talk, gateway, entries):
        with timed(redis_cache_of(gateway), 0.3):
            between(gateway, redis.pause)
            refused = await talk.exchange(keyed("k", path="/later"))
        redis.resume()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"cache-unavailable"' in refused
        assert ACCEPTED in await answered(talk, keyed("k", path="/later"))
        assert entries() == 3  # a copy, which counts as the same command


class Broken:
    """A transport whose other side has left: uvloop's raise then."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def write(self, _: bytes) -> None:
        raise RuntimeError("the other side has left")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.interpreted
@pytest.mark.usefixtures("unhurried")
async def test_a_connection_that_breaks_as_it_is_written_to_leaves_nobody_waiting(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(redis) as (talk, gateway, entries):
        cache = redis_cache_of(gateway)

        def break_it() -> None:
            pipeline: Any = session_of(cache).claims.pipeline
            pipeline._transport = Broken(transport_of(pipeline))
            monkeypatch.setattr(pipe, "EARLY", 1)  # as where many commands wait to be written

        between(gateway, break_it)
        refused = await talk.exchange(keyed("k", path="/later"))
        assert b'"cache-unavailable"' in refused
        assert ACCEPTED in await answered(talk, keyed("k", path="/later"))
        assert entries() == 2


@pytest.mark.usefixtures("unhurried")
async def test_what_fails_on_its_way_leaves_nobody_waiting(redis: RedisServer) -> None:
    def fail() -> None:
        raise LookupError

    async with ready(redis) as (talk, gateway, entries):
        between(gateway, fail)
        assert (await talk.exchange(keyed("k", path="/later"))).startswith(b"HTTP/1.1 500 ")
        talk.leave()
        talk.reader, talk.writer = await asyncio.open_connection(*talk.writer.get_extra_info("peername")[:2])
        assert (await talk.exchange(keyed("k", path="/later"))).startswith(ACCEPTED)  # to submit it again is harmless
        assert entries() == 2
