"""What clients and the upstream have seen while gateways were killed and stalled is explained by an order of claims, outcomes and
lapses that the law allows, for each caller and key. The checker of histories refuses those that no such order explains.

Rules of docs/contract.md: R1.1, R1.2, R1.3.
"""

import asyncio
import random
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import httpx
import pytest

from testing.caller import BODY_MARK, CALLER_MARK, Caller, fresh_key, is_replay, slug
from testing.gateway import Gateway
from testing.histories import Answer, Execution, History, Terms, Unexplained, explain
from testing.own_loop import OwnLoopUpstream
from testing.postgresql import records_server
from testing.servers import RedisServer
from testing.upstreams import Peer
from tests.system.conftest import Start

TERMS = Terms(lease=10)
GOOD: dict[str, History] = {
    "an execution and its replay": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 5, "replayed", b"a")], [Execution(1, 2, 1, b"a")]
    ),
    "one beside it is told that it is in flight": History(
        [Answer(0, 3, "executed", b"a"), Answer(1, 2, "in-flight")], [Execution(0.5, 2.5, 1, b"a")]
    ),
    "one beside it waits": History(
        [Answer(0, 3, "executed", b"a"), Answer(1, 4, "replayed", b"a")], [Execution(0.5, 2.5, 1, b"a")]
    ),
    "its gateway was killed": History(
        [Answer(0, inf, "none"), Answer(2, 3, "in-flight"), Answer(11, 12, "unknown")], [Execution(1, inf, 1, b"a")]
    ),
    "its gateway was killed when it had recorded it": History(
        [Answer(0, inf, "none"), Answer(12, 13, "replayed", b"a")], [Execution(1, 2, 1, b"a")]
    ),
    "a gateway was killed before it came to the upstream": History(
        [Answer(0, inf, "none"), Answer(1, 2, "in-flight"), Answer(11, 12, "unknown")]
    ),
    "a refused claim was given back": History(
        [Answer(0, 1, "refused"), Answer(2, 4, "executed", b"a")], [Execution(2.5, 3, 1, b"a")]
    ),
    "the upstream broke off": History(
        [Answer(0, 3, "failed"), Answer(4, 5, "unknown")], [Execution(1, 2, 1, b"", cut=True)]
    ),
    "another payload": History(
        [Answer(0, 3, "executed", b"a"), Answer(2, 5, "reused", payload=b"q")], [Execution(1, 2, 1, b"a")]
    ),
}
RETRIED: dict[str, History] = {
    "an unknown outcome is tried again": History(
        [Answer(0, inf, "none"), Answer(11, 14, "executed", b"b")],
        [Execution(1, inf, 1, b"a"), Execution(12, 13, 2, b"b")],
    ),
    "one that was killed before it came to the upstream counts": History(
        [Answer(0, inf, "none"), Answer(11, 14, "executed", b"b")], [Execution(12, 13, 2, b"b")]
    ),
    "the first one ends before the second one claims": History(
        [Answer(0, inf, "none"), Answer(11, 14, "replayed", b"a")], [Execution(1, 12, 1, b"a")]
    ),
}
BAD: dict[str, History] = {
    "a second success": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 7, "executed", b"b")],
        [Execution(1, 2, 1, b"a"), Execution(5, 6, 1, b"b")],
    ),
    "a success is executed again": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 7, "none")], [Execution(1, 2, 1, b"a"), Execution(5, 6, 2, b"b")]
    ),
    "two at once": History(
        [Answer(0, 3, "executed", b"a"), Answer(0, 3, "executed", b"b")],
        [Execution(1, 2, 1, b"a"), Execution(1, 2, 1, b"b")],
    ),
    "a replay of what was never made": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 5, "replayed", b"b")], [Execution(1, 2, 1, b"a")]
    ),
    "a replay of what was broken off": History(
        [Answer(0, 3, "failed"), Answer(4, 5, "replayed", b"a")], [Execution(1, 2, 1, b"a", cut=True)]
    ),
    "a replay before its execution": History(
        [Answer(0, 1, "replayed", b"a"), Answer(2, 5, "executed", b"a")], [Execution(3, 4, 1, b"a")]
    ),
    "a replay while it is executed": History(
        [Answer(0, 5, "executed", b"a"), Answer(1, 2, "replayed", b"a")], [Execution(0.5, 3, 1, b"a")]
    ),
    "a response before its record": History(
        [Answer(0, 3, "executed", b"a"), Answer(14, 15, "unknown")], [Execution(1, 2, 1, b"a")]
    ),
    "an answer that nobody made": History([Answer(0, 3, "executed", b"a")]),
    "an execution that nobody asked for": History([Answer(5, 6, "refused")], [Execution(1, 2, 1, b"a")]),
    "in flight after its end": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 5, "in-flight")], [Execution(1, 2, 1, b"a")]
    ),
    "unknown before the lease is over": History(
        [Answer(0, inf, "none"), Answer(5, 6, "unknown")], [Execution(1, inf, 1, b"a")]
    ),
    "unknown is tried again where that is refused": History(
        [Answer(0, inf, "none"), Answer(11, 14, "executed", b"b")],
        [Execution(1, inf, 1, b"a"), Execution(12, 13, 2, b"b")],
    ),
    "a number is left out": History([Answer(0, 3, "executed", b"a")], [Execution(1, 2, 2, b"a")]),
    "a refusal for a payload that was the same": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 5, "reused")], [Execution(1, 2, 1, b"a")]
    ),
    "a replay for another payload": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 5, "replayed", b"a", b"q")], [Execution(1, 2, 1, b"a")]
    ),
    "another payload is executed": History(
        [Answer(0, 3, "executed", b"a"), Answer(4, 7, "executed", b"b", b"q")],
        [Execution(1, 2, 1, b"a"), Execution(5, 6, 1, b"b", b"q")],
    ),
    "something is replayed, and unknown afterwards": History(
        [Answer(0, inf, "none"), Answer(3, 4, "replayed", b"a"), Answer(11, 12, "unknown")], [Execution(1, 2, 1, b"a")]
    ),
}
BAD_RETRIES: dict[str, History] = {
    "two attempts under one number": History(
        [Answer(0, inf, "none"), Answer(11, 14, "executed", b"b")],
        [Execution(1, inf, 1, b"a"), Execution(12, 13, 1, b"b")],
    ),
    "a takeover before the lease is over": History(
        [Answer(0, inf, "none"), Answer(2, 7, "executed", b"b")], [Execution(1, inf, 1, b"a"), Execution(5, 6, 2, b"b")]
    ),
    "a late owner's outcome in place of its successor's": History(
        [Answer(0, inf, "none"), Answer(11, 14, "executed", b"b"), Answer(20, 21, "replayed", b"a")],
        [Execution(1, 15, 1, b"a"), Execution(12, 13, 2, b"b")],
    ),
}


@pytest.mark.parametrize("name", GOOD | RETRIED)
def test_a_history_that_an_order_explains_is_accepted(name: str) -> None:
    terms = TERMS if name in GOOD else Terms(lease=10, retries_unknown=True)
    assert explain((GOOD | RETRIED)[name], terms)


def test_who_waits_at_the_gateway_of_an_attempt_has_its_outcome_before_a_cache_that_is_away() -> None:
    waited = [Answer(0, 3, "executed", b"a"), Answer(1, 3.1, "replayed", b"a"), Answer(4, 5, "in-flight")]
    seen = [Execution(0.5, 2, 1, b"a")]
    assert explain(History(waited, seen), Terms(lease=10, records_first=False))
    for terms, answers in (
        (TERMS, waited),
        (Terms(lease=10, records_first=False), [*waited, Answer(3.2, 3.5, "replayed", b"a")]),
    ):
        with pytest.raises(Unexplained):
            explain(History(answers, seen), terms)


@pytest.mark.parametrize("name", BAD | BAD_RETRIES)
def test_a_history_that_no_order_explains_is_refused(name: str) -> None:
    terms = TERMS if name in BAD else Terms(lease=10, retries_unknown=True)
    with pytest.raises(Unexplained):
        explain((BAD | BAD_RETRIES)[name], terms)


def test_another_caller_s_answer_is_refused() -> None:
    alice = History([Answer(0, 3, "executed", b"alice's")], [Execution(1, 2, 1, b"alice's")])
    bob = History([Answer(0, 3, "replayed", b"alice's")])
    assert explain(alice, TERMS)
    with pytest.raises(Unexplained):
        explain(bob, TERMS)


def test_a_response_may_leave_before_its_record_where_the_cache_may_be_away() -> None:
    explain(BAD["a response before its record"], Terms(lease=10, records_first=False))


class Witness(OwnLoopUpstream):
    """An upstream that answers each request otherwise, after a while, and writes down what it has seen, by caller and key."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.seen: defaultdict[tuple[str, str], list[Execution]] = defaultdict(list)
        self._chance = random.Random(seed)

    async def serve(self, peer: Peer) -> None:
        while True:
            request = await peer.request()
            began, content, cut = time.monotonic(), uuid4().hex.encode(), self._chance.random() < 0.1
            caller = (request.value("authorization") or "").removeprefix(f"Bearer {CALLER_MARK}")
            place = self.seen[caller, request.value("idempotency-key") or ""]
            attempt = int(request.value("idempotency-attempt") or 0)
            number = len(place)
            place.append(Execution(began, inf, attempt, content, request.body, cut))
            await asyncio.sleep(self._chance.choice([0, 0, self._chance.uniform(0, 1.5)]))
            # Written down before it is sent: who has the answer must not be earlier than it.
            place[number] = Execution(began, time.monotonic(), attempt, content, request.body, cut)
            if cut:
                peer.reset()
                return
            await peer.send(b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))


KINDS = {
    None: "executed",
    "in-flight": "in-flight",
    "outcome-unknown": "unknown",
    "key-reused": "reused",
    "cache-unavailable": "refused",
    "overloaded": "refused",
}


class CacheOfARun(Protocol):
    """What the gateways of a run share, and what may stand still."""

    @property
    def url(self) -> str: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class LockedFile:
    """A file of records. While it stands still somebody has its lock, as a process has that is stopped within a commit."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/records.db"
        self._lock: sqlite3.Connection | None = None

    def pause(self) -> None:
        """Take the lock."""
        self._lock = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30, isolation_level=None)
        self._lock.execute("BEGIN IMMEDIATE")

    def resume(self) -> None:
        """Let go of it."""
        if self._lock is not None:
            self._lock.close()


@contextmanager
def cache_of(kind: str, folder: Path) -> Iterator[CacheOfARun]:
    """One for the length of a ``with``."""
    if kind == "sqlite":
        yield LockedFile(folder)
    elif kind == "postgresql":
        with records_server() as server:
            yield server
    else:
        with RedisServer(persist=True) as redis:
            yield redis


class Run:
    """Clients of some gateways that are killed and stalled, and what they have got, by caller and key."""

    def __init__(
        self, start: Start, cache: CacheOfARun, witness: Witness, seed: str, *, away: bool, retries: bool
    ) -> None:
        self.histories: defaultdict[tuple[str, str], History] = defaultdict(History)
        self.kinds: Counter[str] = Counter()
        # Where the cache is not made to stand still, no response is sent before its record: a slow machine must not do it either.
        self.lease, self.cache_timeout = (1.0, 0.3) if away else (6.0, 2.0)
        self.terms = Terms(self.lease, retries_unknown=retries, records_first=not away)
        self._start = start
        self._cache = cache
        self._witness = witness
        self._chance = random.Random(seed)
        self._namespace = uuid4().hex
        self._away = away

    def gateway(self) -> Gateway:
        rules = {"lease": self.lease, "on_unknown": "retry" if self.terms.retries_unknown else "refuse"}
        return self._start(
            self._witness.url,
            self._cache.url,
            namespace=self._namespace,
            cache_timeout=self.cache_timeout,
            idempotency=rules,
        )

    async def request(self, caller: Caller, gateway: Gateway, who: str, key: str, payload: bytes) -> str:
        """One request; its answer's kind."""
        began, kind, content = time.monotonic(), "none", b""
        patience = self._chance.choice([0.05, 0.5, 5.0, 20.0])
        try:
            async with asyncio.timeout(patience):
                wait = self._chance.choice([None, None, 1])
                answer = await caller.post(gateway, key, caller=who, body=payload, wait=wait)
        except (httpx.TransportError, TimeoutError):
            pass
        else:
            kind = "replayed" if is_replay(answer) else KINDS.get(slug(answer), "failed")
            content = answer.content if slug(answer) is None else b""
        ended = inf if kind == "none" else time.monotonic()
        self.histories[who, key].answers.append(Answer(began, ended, kind, content, payload))
        self.kinds[kind] += 1
        return kind

    async def go(self, caller: Caller, keys: int, faults: int) -> None:
        gateways = [self.gateway() for _ in range(2)]
        for gateway in gateways:
            await asyncio.to_thread(gateway.ready)

        async def send(who: str, key: str, payload: bytes) -> None:
            for _ in range(self._chance.randint(2, 5)):
                await self.request(caller, self._chance.choice(gateways), who, key, payload)
                await asyncio.sleep(self._chance.choice([0, self._chance.uniform(0, 0.5)]))

        async def harm() -> None:
            for _ in range(faults):
                await asyncio.sleep(self._chance.uniform(0.2, 0.8))
                await self._chance.choice([self._kill, self._stall, *([self._leave] * self._away)])(gateways)

        async def work() -> None:
            for _ in range(keys):
                key = fresh_key()
                first, other = BODY_MARK + b"first", BODY_MARK + b"other"
                senders = [send("alice", key, first), send("alice", key, first), send("bob", key, first)]
                if self._chance.random() < 0.3:
                    senders.append(send("alice", key, other))
                await asyncio.gather(*senders)

        await asyncio.gather(harm(), *[work() for _ in range(4)])
        await asyncio.sleep(0 if self._away else self.lease)  # what the last kills have left is unknown by now
        for who, key in [*self.histories]:
            await self.request(caller, gateways[0], who, key, BODY_MARK + b"first")

    async def _kill(self, gateways: list[Gateway]) -> None:
        place, successor = self._chance.randrange(2), self.gateway()
        gateways[place].kill()
        gateways[place] = await asyncio.to_thread(successor.ready)

    async def _stall(self, gateways: list[Gateway]) -> None:
        gateway = self._chance.choice(gateways)
        gateway.stall()
        await asyncio.sleep(self._chance.choice([0.2, self.lease * 1.5]))
        gateway.resume()

    async def _leave(self, _: list[Gateway]) -> None:
        self._cache.pause()
        await asyncio.sleep(self._chance.choice([0.2, self.lease * 1.5]))
        self._cache.resume()

    def check(self) -> None:
        """Raises `Unexplained`."""
        for place, executions in self._witness.seen.items():
            self.histories[place].executions.extend(executions)
        for (who, _), history in self.histories.items():
            try:
                explain(history, self.terms)
            except Unexplained as error:
                lines = [str(each) for each in (*history.answers, *history.executions)]
                raise Unexplained("\n".join([f"{who}: {error}", *lines])) from None


async def run(
    start: Start, kind: str, folder: Path, *, away: bool, retries: bool, keys: int, faults: int
) -> Counter[str]:
    """The kinds of answers in a run that is explained. Raises `Unexplained`."""
    seed = f"{keys} {away} {retries}"
    with cache_of(kind, folder) as cache, Witness(seed) as witness:
        async with Caller() as caller:
            made = Run(start, cache, witness, seed, away=away, retries=retries)
            await made.go(caller, keys, faults)
        made.check()
    return made.kinds


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cache", "away", "retries"),
    [("redis", False, False), ("redis", True, True), ("sqlite", True, True), ("postgresql", True, True)],
)
async def test_what_was_seen_in_a_run_with_kills_is_explained(
    start: Start, tmp_path: Path, cache: str, away: bool, retries: bool
) -> None:
    kinds = await run(start, cache, tmp_path, away=away, retries=retries, keys=4, faults=4)
    assert kinds.keys() >= {"executed", "replayed"}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("retries", [False, True])
@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("cache", ["redis", "sqlite", "postgresql"])
async def test_what_was_seen_in_a_long_run_with_kills_is_explained(
    start: Start, tmp_path: Path, cache: str, away: bool, retries: bool
) -> None:
    kinds = await run(start, cache, tmp_path, away=away, retries=retries, keys=60, faults=60)
    assert kinds.keys() >= {"executed", "replayed", "in-flight", "reused", "failed", "none"}
