"""Rounds of chance against what once lost something, or did it twice: killed, stalled or raced at an instant that is drawn.

A kind of round is a context: what it starts is shared by its rounds, each of which has keys, or a namespace, of its own.
"""

import asyncio
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from sqlalchemy import text

from oncegate.cache.redis.store import RedisCache
from testing.caller import Caller, fresh_key, is_replay, slug
from testing.command_line import invoke
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, free_port
from testing.template import ROOT, Forked
from testing.waiting import until
from tests.middleware.door import Answering, Door
from tests.system.proxy import LossyProxy
from tests.worker.shop import Shop, WorkerProcess, at_gate, waiting
from tests.worker.test_inbox import database
from tests.worker.test_inbox import start as start_paying

Round = Callable[[random.Random], Awaitable[None]]
Rounds = Callable[[Path], AbstractAsyncContextManager[Round]]

LEASE = 0.6
UNHURRIED = 20.0
"""Seconds of cache time-out where only a dead Redis may exceed it."""


@asynccontextmanager
async def commits(folder: Path) -> AsyncIterator[Round]:
    """An app that commits after its response is killed at any instant: where its client, or a retry, got a 201 there is a row."""
    books, namespace = folder / "books.db", uuid4().hex
    with sqlite3.connect(books) as connection:
        connection.execute("CREATE TABLE payment (key TEXT)")
    with RedisServer() as redis:
        environment = {"BOOKS": str(books), "REDIS": redis.url, "NAMESPACE": namespace}
        app = LateCommit(environment)
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

            async def post(key: str, pause: float) -> bool:
                headers = {"Idempotency-Key": key, "Pause": f"{pause:.4f}", "Content-Type": "application/json"}
                try:
                    return (await client.post(f"{app.url}/payments", headers=headers)).status_code == 201
                except httpx.TransportError:
                    return False

            async def one(draw: random.Random) -> None:
                await until(partial(app.serves, client), "the app serves")
                key, kill_after = fresh_key(), draw.uniform(0, 0.15)
                first = asyncio.create_task(post(key, draw.uniform(0, 0.1)))
                await asyncio.sleep(kill_after)
                app.restart()
                was_paid = await first
                await until(partial(app.serves, client), "the app serves again")
                await until(lambda: post(key, 0), "the retry is answered")
                with sqlite3.connect(books) as connection:
                    (rows,) = connection.execute("SELECT count(*) FROM payment WHERE key = ?", (key,)).fetchone()
                # Killed between the commit and the record, its outcome is unknown, and this policy executes again.
                assert rows == 1 or (rows == 2 and not was_paid), f"{rows} rows, and the first was answered: {was_paid}"

            try:
                yield one
            finally:
                app.kill()


class LateCommit:
    """The process of tests/system/late_commit.py."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = os.environ | environment
        self._start()

    def _start(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        preloaded = ("uvicorn", "fastapi", "oncegate", "uvicorn.protocols.http.httptools_impl")
        command = ("-m", "tests.system.late_commit", str(port))
        self._process = Forked(*command, preloaded=preloaded, cwd=ROOT, env=self._environment, start_new_session=True)

    async def serves(self, client: httpx.AsyncClient) -> bool:
        assert self._process.poll() is None, "it ended by itself"
        try:
            return (await client.get(self.url)).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._start()


@asynccontextmanager
async def secrets(folder: Path) -> AsyncIterator[Round]:
    """Of gateways that start at once with different secrets, one may be killed: those that serve have the same one."""
    numbers = count(1)
    with RedisServer() as redis, Ledger() as ledger:
        async with Caller() as caller:

            async def one(draw: random.Random) -> None:
                namespace, chosen = uuid4().hex, draw.sample(["", "a" * 32, "b" * 32], 2)
                gateways = [
                    Gateway(
                        folder / f"{next(numbers)}.log",
                        ledger.url,
                        redis.url,
                        namespace=namespace,
                        secret=secret,
                        cache_timeout=UNHURRIED,
                        idempotency={"lease": 3 * UNHURRIED},
                    )
                    for secret in chosen
                ]
                killed = draw.choice([None, None, 0, 1])
                if killed is not None:
                    await asyncio.sleep(draw.uniform(0, 0.8))
                    gateways[killed].kill()
                try:
                    await judge(namespace, gateways, killed)
                finally:
                    for gateway in gateways:
                        gateway.end()

            async def judge(namespace: str, gateways: list[Gateway], killed: int | None) -> None:
                rest = [gateway for place, gateway in enumerate(gateways) if place != killed]
                serving = [gateway for gateway in rest if await asyncio.to_thread(serves, gateway)]
                held = redis.command("GET", f"{{{namespace}:secret}}")
                assert held is not None
                assert len(serving) == 1 or (killed is not None and not serving), [each.text() for each in gateways]
                for gateway in rest:
                    assert (gateway in serving) != ("under another secret" in gateway.text()), gateway.text()
                key = fresh_key()
                for gateway in serving:
                    assert [(await caller.post(gateway, key)).status_code for _ in range(2)] == [201, 201]
                    assert ledger.attempts(key) == ["1"]

            yield one


def serves(gateway: Gateway) -> bool:
    """Whether it came up; it has ended otherwise."""
    deadline = time.monotonic() + 60
    while "listening on" not in gateway.text():
        if gateway.has_ended:
            return False
        assert time.monotonic() < deadline, gateway.text()
        time.sleep(0.02)
    gateway.ready()
    return True


@asynccontextmanager
async def in_shops(folder: Path, play: Callable[[Shop, random.Random], None]) -> AsyncIterator[Round]:
    """Each round is played in a shop of its own."""
    numbers = count(1)
    with RedisServer() as redis:

        async def one(draw: random.Random) -> None:
            place = folder / str(next(numbers))
            place.mkdir()
            shop = Shop(redis.url, place)
            try:
                await asyncio.to_thread(play, shop, draw)
            finally:
                shop.close()

        yield one


def suspects(folder: Path) -> AbstractAsyncContextManager[Round]:
    """Some of the commands that are executed side by side kill their worker each time: no other one is given up."""
    return in_shops(folder, poison)


def poison(shop: Shop, draw: random.Random) -> None:
    neighbours = [f"neighbour-{number}" for number in range(draw.randint(2, 6))]
    killers = [f"killer-{number}" for number in range(draw.choice([1, 1, 2]))]
    names = [*neighbours, *killers]
    draw.shuffle(names)
    for name in names:
        shop.submit(name, at_gate(shop, then="die" if name in killers else "book"))
    handler, most = draw.choice(["die_or_book", "die_or_book_slowly"]), draw.randint(3, 5)
    workers: list[WorkerProcess] = []

    def has(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{workers[-1].text()}"
            if workers[-1].ended():  # as a supervisor does
                workers.append(shop.start(handler, max_attempts=most))
            time.sleep(0.02)

    workers.append(shop.start(handler, max_attempts=most))
    has(lambda: waiting(shop) >= 1 and all(shop.state(name) == "in-flight" for name in names), "all are claimed")
    shop.gate.touch()
    has(shop.all_done, "all is acknowledged")
    assert sorted(letter["key"] for letter in shop.letters()) == killers
    for name in neighbours:
        record = shop.record(name)
        assert record.state.value == "succeeded"
        assert record.attempt <= 2, f"{name} lost an attempt to a neighbour twice"


@asynccontextmanager
async def replays(folder: Path) -> AsyncIterator[Round]:
    """Replays, retries of errors and new keys of one caller arrive while Redis stands still: none is counted as another."""
    headers = [("authorization", "Bearer alice")]
    with RedisServer() as redis:
        cache = RedisCache.from_url(redis.url, timeout=UNHURRIED)

        async def one(draw: random.Random) -> None:
            most = draw.randint(1, 4)
            limits: list[tuple[dict[str, Any], str]] = [
                ({"max_in_flight_per_caller": most}, "too-many-keys"),
                ({"new_keys_per_caller": f"{most + 2}/h"}, "too-many-keys"),
                ({"max_in_flight": most}, "overloaded"),
            ]
            limit, refusal = draw.choice(limits)
            app = Answering(201, 500, 201, held=True)
            there = Door(app, cache, uuid4().hex, **limit)
            app.release()
            for key in ("done", "failed"):
                await there.send(key=key, headers=headers)
            app.hold()
            new = draw.randint(0, 2 * most)
            retries = draw.choice([0, 1]) if "new_keys_per_caller" in limit else 0
            keys = ["done"] * draw.randint(1, 60) + [f"new-{number}" for number in range(new)] + ["failed"] * retries
            draw.shuffle(keys)
            redis.pause()
            try:
                calls = {}
                for place, key in enumerate(keys):
                    calls[place] = there.begin(key=key, headers=headers)
                    if draw.random() < 0.2:
                        await asyncio.sleep(0)
                for _ in range(20):
                    await asyncio.sleep(0)
            finally:
                redis.resume()
            expected = min(new, most) + retries
            await app.arrivals(2 + expected)
            await until(lambda: sum(call.done for call in calls.values()) == len(keys) - expected)
            app.release()
            answers: Counter[object] = Counter()
            for place, call in calls.items():
                await call.answered()
                key = keys[place]
                assert key != "done" or (call.status == 201 and call.replayed), f"a replay got {call.status}"
                assert key != "failed" or call.status == 201, f"a retry of an error got {call.status}"
                if key.startswith("new"):
                    answers[201 if call.status == 201 else call.code] += 1
            assert answers == Counter({201: min(new, most)}) + Counter({refusal: new - min(new, most)})
            assert app.calls == 2 + expected

        yield one
        await cache.close()


def cleanups(folder: Path) -> AbstractAsyncContextManager[Round]:
    """An inbox forgets beside a worker that may be killed, under clocks that differ: every waiting command is executed once."""
    return in_shops(folder, forget)


def forget(shop: Shop, draw: random.Random) -> None:
    engine = database(shop.folder)
    now_ms, commands = int(time.time() * 1000), draw.randint(1, 5)
    instants = sorted(now_ms - draw.randrange(20 * 86_400_000) for _ in range(commands))
    for number, entry_ms in enumerate(instants):
        # Its gateway's clock is apart from Redis's by a moment or by minutes, on either side.
        apart = draw.choice([0, 1, -1, draw.randint(-300_000, 300_000)])
        command = shop.command(f"order-{number}", {"amount": 5}, accepted_at_ms=entry_ms - apart)
        shop.redis.xadd(shop.stream, command.fields(), f"{entry_ms}-{number + 1}")  # type: ignore[arg-type]  # redis-py's types know no bytes as fields
    with engine.begin() as connection:
        for days in (30, 12, 8):
            connection.execute(
                text(
                    "INSERT INTO oncegate_inbox (received_at, consumer, message) "
                    f"VALUES (datetime('now', '-{days} days'), 'billing', 'x{days}')"
                )
            )
    config = shop.folder / "gateway.toml"
    config.write_text(f'cache = "{shop.url}"\nnamespace = "{shop.namespace}"\n')
    where = f"sqlite:///{shop.folder}/shop.db"

    def clean() -> None:
        done = invoke("inbox", "cleanup", "--database", where, "--config", str(config), "--json")
        assert done.returncode == 0, done.stderr

    if draw.random() < 0.5:
        clean()
    worker = start_paying(shop, shop.folder)
    if draw.random() < 0.5:
        time.sleep(draw.uniform(0, 0.6))
        worker.kill()
        worker = start_paying(shop, shop.folder)
    clean()
    shop.done()
    assert shop.letters() == []
    with engine.begin() as connection:
        assert connection.scalar(text("SELECT balance FROM account")) == 5 * commands
    engine.dispose()


@asynccontextmanager
async def owed(folder: Path) -> AsyncIterator[Round]:
    """Redis is away, or stands still, for longer than the lease while a success becomes known: it is never executed again."""
    async with AsyncExitStack() as stack:
        redis, ledger = stack.enter_context(RedisServer(persist=True)), stack.enter_context(Ledger())
        caller = await stack.enter_async_context(Caller())
        gateway = Gateway(
            folder / "gateway.log",
            ledger.url,
            redis.url,
            cache_timeout=0.2,
            idempotency={"lease": LEASE, "on_unknown": "retry"},
        )
        stack.callback(gateway.end)
        await asyncio.to_thread(gateway.ready)

        async def one(draw: random.Random) -> None:
            key = fresh_key()
            async with caller.held(ledger, gateway, key) as (first, gate):
                is_away = draw.random() < 0.7
                (redis.stop if is_away else redis.pause)()
                try:
                    gate.open()
                    answer = await first
                    assert answer.status_code == 201
                    await asyncio.sleep(LEASE + draw.uniform(0, 1.5))
                finally:
                    await asyncio.to_thread(redis.start if is_away else redis.resume)
            await asyncio.sleep(draw.choice([0, draw.uniform(0, 0.1)]))
            retry = await caller.settled(gateway, key)
            assert (ledger.attempts(key), retry.content, is_replay(retry)) == (["1"], answer.content, True)

        yield one


@asynccontextmanager
async def held_back(folder: Path) -> AsyncIterator[Round]:
    """A gateway whose connection to Redis breaks is killed as soon as its client has a 201: the record is there."""
    numbers = count(1)
    async with AsyncExitStack() as stack:
        redis, ledger = stack.enter_context(RedisServer()), stack.enter_context(Ledger())
        proxy = stack.enter_context(LossyProxy(redis.port))
        caller = await stack.enter_async_context(Caller())

        def start(cache: str) -> Gateway:
            log = folder / f"{next(numbers)}.log"
            gateway = Gateway(log, ledger.url, cache, cache_timeout=UNHURRIED, idempotency={"lease": 3 * UNHURRIED})
            stack.callback(gateway.end)
            return gateway

        other = await asyncio.to_thread(start(redis.url).ready)
        following = [start(proxy.url)]

        async def one(draw: random.Random) -> None:
            gateway = await asyncio.to_thread(following.pop().ready)
            following.append(start(proxy.url))
            key = fresh_key()
            ledger.answer(key, Reply(delay=draw.uniform(0, 0.05)))
            proxy.lose_reply_to("complete", draw.choice(["drop", "cut"]))
            answer = await caller.post(gateway, key)
            await asyncio.sleep(draw.choice([0, draw.uniform(0, 0.2)]))
            gateway.kill()
            assert answer.status_code == 201
            retry = await caller.post(other, key)
            assert (slug(retry), is_replay(retry), retry.content) == (None, True, answer.content)
            assert ledger.attempts(key) == ["1"]

        yield one


KINDS: dict[str, Rounds] = {
    "a commit after the response": commits,
    "gateways under different secrets": secrets,
    "neighbours of a command that kills": suspects,
    "replays under a caller's limits": replays,
    "an inbox that forgets beside a worker": cleanups,
    "a success that Redis has not taken": owed,
    "a response before its record": held_back,
}
