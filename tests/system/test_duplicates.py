"""Many requests with one key, at once and over several processes: one execution, and everybody is told of it.

Rules of docs/contract.md: R1.1, R1.3, R2.17, R6.1, R6.7, R6.10.
"""

import asyncio
import json
from uuid import uuid4

import httpx
import pytest

from testing.caller import Caller, RawClient, fresh_key, is_replay, raw_post, slug
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import Start

DUPLICATES = 200


def check_answers(answers: list[httpx.Response], *, replays: int | None = None) -> None:
    """One first answer, replays that are its equals, and for the rest: still in flight."""
    done = [answer for answer in answers if answer.status_code == 201]
    assert len({answer.content for answer in done}) == 1
    assert len([answer for answer in done if not is_replay(answer)]) == 1
    refused = [answer for answer in answers if answer not in done]
    assert {slug(answer) for answer in refused} <= {"in-flight"}
    assert all(answer.headers["retry-after"] for answer in refused)
    if replays is not None:
        assert len(done) - 1 == replays


async def test_of_many_duplicates_over_three_processes_one_arrives_and_waiters_get_its_result(
    trio: list[Gateway], ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    async with caller.held(ledger, trio[0], key) as (first, gate):
        waiting = [caller.send(trio[number % 3], key, wait=30) for number in range(DUPLICATES // 2)]
        impatient = [caller.send(trio[number % 3], key) for number in range(DUPLICATES // 2)]
        assert {slug(answer) for answer in await asyncio.gather(*impatient)} == {"in-flight"}
        gate.open()
        answers = await asyncio.gather(*waiting)
    check_answers([await first, *answers], replays=DUPLICATES // 2)
    assert all(answer.headers["preference-applied"] == "wait=30" for answer in answers if is_replay(answer))
    assert ledger.attempts(key) == ["1"]


async def test_of_duplicates_that_come_all_at_once_one_arrives(
    trio: list[Gateway], ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    answers = await asyncio.gather(*[caller.post(trio[number % 3], key) for number in range(DUPLICATES)])
    check_answers(answers)
    assert ledger.attempts(key) == ["1"]


async def test_of_duplicates_at_once_on_the_embedded_cache_one_arrives(
    on_memory: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    answers = await asyncio.gather(*[caller.post(on_memory, key, wait=30) for _ in range(DUPLICATES)])
    check_answers(answers, replays=DUPLICATES - 1)
    assert ledger.attempts(key) == ["1"]


async def test_two_workers_of_one_gateway_let_one_duplicate_through(
    start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    gateway = start(ledger.url, redis_server.url, workers=2, cache_timeout=10).ready()
    seen: set[int] = set()
    for _ in range(100):  # until the kernel has let both workers take part in one crowd
        key = fresh_key()
        logged = len(gateway.text())
        answers = await asyncio.gather(*[caller.post(gateway, key, wait=30) for _ in range(40)])
        check_answers(answers, replays=39)
        assert ledger.attempts(key) == ["1"]
        lines = [json.loads(line) for line in gateway.text()[logged:].splitlines()]
        seen = {line["process"] for line in lines if line["logger"] == "oncegate.request"}
        if len(seen) == 2:
            return
    pytest.fail(f"only {seen} ever served")


async def test_of_many_retries_of_an_error_one_is_the_next_attempt(
    trio: list[Gateway], ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(500), Reply(503), Reply(201))
    assert (await caller.post(trio[0], key)).status_code == 500
    assert ledger.attempts(key) == ["1"]
    with ledger.gate() as gate:
        ledger.answer(key, Reply(500), Reply(503, gate=gate), Reply(201))
        retries = [caller.send(trio[number % 3], key, wait=30) for number in range(60)]
        await until(lambda: len(ledger.arrivals(key)) == 2, "the second attempt arrives")
        late = [caller.send(trio[number % 3], key) for number in range(30)]
        assert {slug(answer) for answer in await asyncio.gather(*late)} == {"in-flight"}
        assert ledger.attempts(key) == ["1", "2"]
        gate.open()
        answers = await asyncio.gather(*retries)
    # Those that came in time waited for the second attempt and share its outcome; a straggler may have begun the third.
    assert {answer.status_code for answer in answers} <= {503, 201}
    answer = await caller.settled(trio[1], key)
    assert answer.status_code == 201
    assert ledger.attempts(key) == ["1", "2", "3"]


async def test_a_released_attempt_does_not_count(gateway: Gateway, ledger: Ledger, caller: Caller) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(429), Reply(500), Reply(401), Reply(201))
    statuses = [(await caller.post(gateway, key)).status_code for _ in range(4)]
    assert statuses == [429, 500, 401, 201]
    assert ledger.attempts(key) == ["1", "1", "2", "2"]
    assert is_replay(await caller.post(gateway, key))


async def test_of_many_that_wait_for_an_attempt_that_is_released_one_makes_the_next(
    trio: list[Gateway], ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    with ledger.gate() as gate:
        ledger.answer(key, Reply(429, gate=gate), Reply(201))
        first = caller.send(trio[0], key)
        await until(lambda: ledger.arrivals(key), "the first request arrives")
        waiting = [caller.send(trio[number % 3], key, wait=30) for number in range(60)]
        impatient = [caller.send(trio[number % 3], key) for number in range(30)]
        assert {slug(answer) for answer in await asyncio.gather(*impatient)} == {"in-flight"}
        gate.open()
        answers = await asyncio.gather(*waiting)
    assert (await first).status_code == 429
    check_answers(answers, replays=59)
    assert ledger.attempts(key) == ["1", "1"]


def test_requests_sent_ahead_on_one_connection_are_answered_in_their_order(gateway: Gateway, ledger: Ledger) -> None:
    key, other = fresh_key(), fresh_key()
    ledger.answer(key, Reply(201, body=b"one"), Reply(500))
    ledger.answer(other, Reply(201, body=b"two"), Reply(500))
    with RawClient(gateway) as client:
        client.send(raw_post(key) + raw_post(key) + raw_post(other) + raw_post(key))
        answers = [client.answer() for _ in range(4)]
    assert [answer.body for answer in answers] == [b"one", b"one", b"two", b"one"]
    assert [bool(answer.values("idempotent-replayed")) for answer in answers] == [False, True, False, True]


async def test_each_caller_has_keys_of_its_own(gateway: Gateway, ledger: Ledger, caller: Caller) -> None:
    key = fresh_key()
    first = {name: await caller.post(gateway, key, caller=name) for name in ("alice", "bob", "alice.bob")}
    assert len({answer.content for answer in first.values()}) == 3
    assert len(ledger.arrivals(key)) == 3
    for name, answer in first.items():
        await caller.meets_replay(gateway, key, caller=name, of=answer)
    assert len(ledger.arrivals(key)) == 3


async def test_another_payload_path_query_or_method_under_a_used_key_is_refused(
    gateway: Gateway, ledger: Ledger, caller: Caller
) -> None:
    key = fresh_key()
    async with caller.held(ledger, gateway, key) as (first, gate):
        assert slug(await caller.post(gateway, key, body=b"body-of-another")) == "key-reused"
        gate.open()
        assert (await first).status_code == 201
    for path, body in (("/payments", b"body-of-another"), ("/refunds", b"body-of-a-payment"), ("/payments?a", b"")):
        assert slug(await caller.post(gateway, key, path, body=body)) == "key-reused"
    assert len(ledger.arrivals(key)) == 1


async def test_two_namespaces_on_one_redis_share_nothing(
    trio: list[Gateway], start: Start, ledger: Ledger, redis_server: RedisServer, caller: Caller
) -> None:
    key = fresh_key()
    other = start(ledger.url, redis_server.url, namespace=f"other-{uuid4().hex}", cache_timeout=10).ready()
    answers = [await caller.post(gateway, key) for gateway in (trio[0], other)]
    assert [is_replay(answer) for answer in answers] == [False, False]
    assert len(ledger.arrivals(key)) == 2
    again = [await caller.post(gateway, key) for gateway in (trio[0], other)]
    assert [answer.content for answer in again] == [answer.content for answer in answers]
    assert all(is_replay(answer) for answer in again)
