"""Everything at once: gateways killed and stalled, Redis stopped and stalled, connections reset, clients that leave.

What must hold whatever happens: where an unknown outcome is refused, no command arrives twice; where it is retried, each
arrival has a number of its own; and all replays of a key are one and the same answer.

Rules of docs/contract.md: R1.2.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from functools import partial
from uuid import uuid4

import httpx
import pytest

from testing.caller import Caller, fresh_key, is_replay, slug
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import Start

CALLERS = 24
LEASE = 1.5
SEEN = {"201", "cache-unavailable"}
"""What a storm must have led to."""
REFUSE, RETRY = "/payments", "/retry-unknown/payments"


class Storm:
    """Callers that retry until they know, and faults among them, over ``gateways``."""

    def __init__(self, start: Start, ledger: Ledger, redis: RedisServer, caller: Caller) -> None:
        self.random = random.Random()
        self.gateways: list[Gateway] = []
        self.keys: dict[str, list[str]] = {REFUSE: [], RETRY: []}
        self.replays: defaultdict[str, set[bytes]] = defaultdict(set)
        """Results that came out of records: who waits may be told one before, where Redis does not answer."""
        self.contents: defaultdict[str, set[bytes]] = defaultdict(set)
        self.answers: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.until = 0.0
        self._namespace = f"chaos-{uuid4().hex}"
        self._start = start
        self._ledger = ledger
        self._redis = redis
        self._caller = caller

    def rages(self) -> bool:
        """Until its time is over, and there was work, and there were faults: on a slow machine that may take longer."""
        over = time.monotonic() - self.until
        return over < 0 or (over < 60 and not self.answers.keys() >= SEEN)

    async def begin(self) -> None:
        self.gateways = [self._new() for _ in range(3)]
        for gateway in self.gateways:
            await asyncio.to_thread(gateway.ready)

    def _new(self) -> Gateway:
        return self._start(
            self._ledger.url,
            self._redis.url,
            namespace=self._namespace,
            cache_timeout=0.5,
            idempotency={"lease": LEASE},
            routes=[{"path": "/retry-unknown/*", "on_unknown": "retry"}],
        )

    async def call(self) -> None:
        """One caller after the other command, each asked for again and again until its outcome is told."""
        while self.rages():
            key, path = fresh_key(), self.random.choice([REFUSE, RETRY])
            self.keys[path].append(key)
            kinds = [Reply(), Reply(cut="before-head"), Reply(200, body=b"cut off", cut="in-body")]
            kinds.append(Reply(pieces=[b"in ", b"pieces: ", uuid4().hex.encode()]))
            kinds += [Reply(delay=self.random.uniform(0.2, 2 * LEASE)) for _ in range(4)]  # for faults to hit
            self._ledger.answer(key, self.random.choice(kinds), Reply())
            while self.rages():
                if await self.request(key, path) in (None, "outcome-unknown"):
                    break

    async def final(self, key: str, path: str) -> tuple[str | None] | None:
        """The problem that a caller gets for good, if any; ``None`` while the same request may get another answer."""
        problem = await self.request(key, path, patiently=True)
        return (problem,) if problem in (None, "outcome-unknown") else None

    async def request(self, key: str, path: str, *, patiently: bool = False) -> str | None:
        gateway = self.random.choice(self.gateways)
        wait = self.random.choice([None, 1])
        # Some callers give up early; none waits for a gateway that was stalled for good.
        patience = 20.0 if patiently else self.random.choice([0.02, 0.3, 3.0])
        try:
            async with asyncio.timeout(patience):
                answer = await self._caller.post(gateway, key, path, wait=wait)
        except (httpx.TransportError, TimeoutError) as error:
            self.answers[type(error).__name__] += 1
            return "no answer"
        problem = slug(answer)
        self.answers[problem or str(answer.status_code)] += 1
        if is_replay(answer) and wait is None:
            self.replays[key].add(answer.content)
        if problem is None:
            self.contents[key].add(answer.content)
        return problem

    async def harm(self) -> None:
        faults = [self._kill, self._stall, self._stop_redis, self._stall_redis]
        while self.rages():
            self.random.shuffle(faults)
            for fault in faults:
                await asyncio.sleep(self.random.uniform(0.1, 0.6))
                self.faults[fault.__name__] += 1
                await fault()

    async def _kill(self) -> None:
        place = self.random.randrange(3)
        successor = self._new()
        self.gateways[place].kill()
        self.gateways[place] = await asyncio.to_thread(successor.ready)

    async def _stall(self) -> None:
        gateway = self.random.choice(self.gateways)
        gateway.stall()
        await asyncio.sleep(self.random.choice([0.2, LEASE * 1.5]))
        gateway.resume()

    async def _stop_redis(self) -> None:
        self._redis.stop()
        await asyncio.sleep(self.random.choice([0.0, 0.5]))
        await asyncio.to_thread(self._redis.start)

    async def _stall_redis(self) -> None:
        self._redis.pause()
        await asyncio.sleep(self.random.choice([0.2, 1.0, LEASE * 1.5]))
        self._redis.resume()


async def weather(storm: Storm, ledger: Ledger, seconds: float) -> None:
    await storm.begin()
    storm.until = time.monotonic() + seconds
    await asyncio.gather(storm.harm(), *[storm.call() for _ in range(CALLERS)])
    summary = f"{dict(storm.answers)} {dict(storm.faults)}"
    # Now that all is quiet, every outcome can be known; and what was told before must be told again.
    for path, keys in storm.keys.items():
        for key in keys:
            if not ledger.arrivals(key):
                continue
            before = set(storm.replays[key])
            (problem,) = await until(partial(storm.final, key, path), f"{key}: {summary}")
            assert not before or problem is None, f"a result was forgotten: {summary}"
    for key in storm.keys[REFUSE]:
        assert ledger.attempts(key) in ([], ["1"]), summary
        assert len(storm.contents[key]) < 2, summary
    for key in storm.keys[RETRY]:
        attempts = ledger.attempts(key)
        assert len(set(attempts)) == len(attempts), f"{attempts} {summary}"
    assert {len(bodies) for bodies in storm.replays.values()} <= {0, 1}, summary
    assert storm.answers.keys() >= SEEN, summary


@pytest.mark.timeout(300)
async def test_in_a_storm_of_faults_no_command_arrives_twice_and_no_result_changes(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    with RedisServer(persist=True) as redis:
        await weather(Storm(start, ledger, redis, caller), ledger, 8)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_in_a_long_storm_of_faults_no_command_arrives_twice_and_no_result_changes(
    start: Start, ledger: Ledger, caller: Caller
) -> None:
    with RedisServer(persist=True) as redis:
        await weather(Storm(start, ledger, redis, caller), ledger, 300)
