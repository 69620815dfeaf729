"""Every problem that the synchronous middleware answers with, in all its members.

Rules of docs/contract.md: R2.12, R3.20, R4.1, R4.2, R4.3, R4.4, R4.5, R4.6, R4.11, R4.12, R4.13, R4.15, R4.16, R4.17,
R4.18, R4.19, R4.20, R4.22, R4.23, R4.24, R4.25, R4.26, R4.37, R5.7, R5.13, R5.27, R5.28, R9.15.
"""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission.observe import Observation
from oncegate.middleware.outcome.errors import NotProcessed, OutcomeUnknown
from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.rules.keys.key import record_id
from testing.inside import attempts_of
from testing.servers import RedisServer, free_port
from testing.waiting import until
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Call, Door

DOCS = "https://docs.example/keys"


def whole(there: Door, call: Call, slug: str, status: int, title: str, *, retryable: bool, key: str | None) -> None:
    """Every member that each problem has, and no other but ``original_result``."""
    problem = dict(call.problem)
    problem.pop("original_result", None)
    detail = problem.pop("detail")
    assert detail
    expected: dict[str, Any] = {
        "type": f"{DOCS}#{slug}",
        "title": title,
        "status": status,
        "code": slug,
        "retryable": retryable,
        "error": {"type": KINDS[slug].error_type, "code": slug, "message": detail},
    }
    if key is not None:
        expected["idempotency_key"] = key
    if "record" in problem:
        expected["record"] = record_id(there.look_up_key(key or ""))
    expected["request_id"] = call.value("x-request-id")
    assert re.fullmatch("[0-9a-f]{12}-[0-9a-f]{8}", expected["request_id"])
    assert problem == expected
    assert call.value("link") == f'<{DOCS}>; rel="describedby"; type="text/html"'
    assert call.value("content-length") == str(len(call.body))
    assert call.value("idempotent-replayed") is None


async def test_key_missing(door: MakeDoor) -> None:
    there = door(app := Answering(201), on_missing_key="reject", docs_url=DOCS)
    call = await there.send(key=None)
    whole(there, call, "key-missing", 400, "Idempotency-Key is missing", retryable=False, key=None)
    assert "record" not in call.problem
    assert app.calls == 0


async def test_key_invalid(door: MakeDoor) -> None:
    there = door(app := Answering(201), docs_url=DOCS)
    call = await there.send(key="a,b")
    whole(there, call, "key-invalid", 400, "Idempotency-Key is invalid", retryable=False, key=None)
    assert "record" not in call.problem
    assert app.calls == 0


async def test_caller_missing(door: MakeDoor) -> None:
    there = door(app := Answering(201), require_scope=True, docs_url=DOCS)
    call = await there.send()
    whole(there, call, "caller-missing", 401, "The caller is not identified", retryable=False, key="k-1")
    assert call.value("www-authenticate") == 'Header name="authorization"', "RFC 9110 section 15.5.2: a 401 has one"
    assert app.calls == 0


async def test_key_reused(door: MakeDoor) -> None:
    there = door(app := Answering(201), docs_url=DOCS)
    await there.send()
    call = await there.send(b"other")
    whole(there, call, "key-reused", 422, "Idempotency-Key is already used", retryable=False, key="k-1")
    assert call.problem["record"] == record_id(there.look_up_key())
    assert app.calls == 1


@pytest.mark.parametrize(
    "other",
    [
        {"body": b"other"},
        {"method": "PATCH"},
        {"path": "/orders"},
        {"path": "/payments/"},
        {"path": "//payments"},
        {"query_string": b"a=1"},
    ],
    ids=lambda other: "-".join(other),
)
@pytest.mark.parametrize("answer", [201, 500, 504], ids=["succeeded", "failed", "unknown"])
async def test_key_reused_for_another_request_in_any_state(door: MakeDoor, other: dict[str, Any], answer: int) -> None:
    there = door(app := Answering(answer), on_error="retry", on_unknown="retry")
    await there.send()
    before = await there.record()
    assert (await there.send(**other)).code == "key-reused"
    assert await there.record() == before
    assert app.calls == 1


async def test_key_reused_while_in_flight(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), on_mismatch="warn")
    first = there.begin()
    await app.arrivals()
    assert (await there.send(b"other")).code == "key-reused", "also where a mismatch is only warned of"
    app.release()
    await first.answered()


async def test_in_flight(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), docs_url=DOCS)
    first = there.begin()
    await app.arrivals()
    call = await there.send()
    title = "A request is outstanding for this Idempotency-Key"
    whole(there, call, "in-flight", 409, title, retryable=True, key="k-1")
    app.release()
    await first.answered()
    assert app.calls == 1


async def test_duplicate(door: MakeDoor) -> None:
    there = door(Answering(201, headers=[(b"X-A", b"1"), (b"set-cookie", b"s"), (b"x-a", b"\xe9")]), docs_url=DOCS)
    before = datetime.now(UTC)
    await there.send()
    call = await there.send(headers=[("idempotency-raise-on-duplicate", "?1")])
    title = "A request with this Idempotency-Key was already processed"
    whole(there, call, "duplicate", 409, title, retryable=False, key="k-1")
    result = call.problem["original_result"]
    completed = datetime.fromisoformat(result.pop("completed_at"))
    assert abs((completed - before).total_seconds()) < 60
    assert result == {"status": 201, "headers": [["x-a", "1"], ["x-a", "\xe9"]], "body": "answer 1"}


async def test_outcome_unknown(door: MakeDoor) -> None:
    there = door(app := Answering(504), docs_url=DOCS)
    await there.send()
    call = await there.send()
    title = "The outcome of an earlier request is unknown"
    whole(there, call, "outcome-unknown", 409, title, retryable=False, key="k-1")
    assert app.calls == 1


@pytest.mark.parametrize("declared", [True, False], ids=["with Content-Length", "without"])
async def test_payload_too_large(door: MakeDoor, declared: bool) -> None:
    there = door(app := Answering(201), max_request_body=10, docs_url=DOCS)
    lines = [("content-length", "11")] if declared else []
    call = await there.send(pieces=(b"12345", b"67890", b"1"), headers=lines)
    whole(there, call, "payload-too-large", 413, "The request is too large", retryable=False, key="k-1")
    assert call.value("connection") == "close"
    assert app.calls == 0
    assert await there.state() is State.ABSENT
    assert (await there.send(b"1234567890")).status == 201, "up to the limit it is none"


@pytest.mark.parametrize("policy", ["fail_closed", "fail_open"])
async def test_record_unreadable(redis_server: RedisServer, namespace: str, policy: str) -> None:
    cache = RedisCache.from_url(redis_server.url, timeout=30)
    there = Door(app := Answering(201), cache, namespace, on_cache_down=policy, docs_url=DOCS)
    redis_server.command("SET", there.look_up_key(), b"\x02 of a newer version", "EX", 60)
    call = await there.send()
    title = "The record of this Idempotency-Key can't be read"
    whole(there, call, "record-unreadable", 500, title, retryable=False, key="k-1")
    assert (app.calls, there.slots) == (0, 0)
    await cache.close()


async def test_upstream_unreachable_frees_the_key(door: MakeDoor) -> None:
    there = door(app := Answering(NotProcessed("refused"), 201), docs_url=DOCS)
    call = await there.send()
    whole(there, call, "upstream-unreachable", 502, "The upstream can't be reached", retryable=True, key="k-1")
    assert await there.state() is State.ABSENT
    assert (await there.send()).status == 201
    assert app.lines("idempotency-attempt") == ["1"]


@pytest.mark.parametrize("policy", ["refuse", "retry"])
async def test_upstream_failed_is_retryable_as_on_unknown_says(door: MakeDoor, policy: str) -> None:
    there = door(app := Answering(OutcomeUnknown("reset"), 201), on_unknown=policy, docs_url=DOCS)
    call = await there.send()
    retryable = policy == "retry"
    whole(there, call, "upstream-failed", 502, "The upstream did not answer", retryable=retryable, key="k-1")
    assert await there.state() is State.UNKNOWN
    retry = await there.send()
    if retryable:
        assert (retry.status, app.lines("idempotency-attempt")) == (201, ["2"])
    else:
        assert (retry.code, app.calls) == ("outcome-unknown", 1)


async def test_cache_unavailable(namespace: str) -> None:
    cache = RedisCache.from_url(f"redis://127.0.0.1:{free_port()}", timeout=5)
    there = Door(app := Answering(201), cache, namespace, docs_url=DOCS)
    call = await there.send()
    whole(there, call, "cache-unavailable", 503, "The record cache is unavailable", retryable=True, key="k-1")
    assert (app.calls, there.slots) == (0, 0)
    with pytest.raises(CacheUnavailable):
        await there.state()
    await cache.close()


async def test_cache_unavailable_under_fail_open_is_a_bypass_without_an_attempt_number(namespace: str) -> None:
    cache = RedisCache.from_url(f"redis://127.0.0.1:{free_port()}", timeout=5)
    there = Door(app := Answering(201), cache, namespace, on_cache_down="fail_open")
    for _ in range(2):
        call = await there.send(headers=[("idempotency-attempt", "7")])
        assert (call.status, call.value("cache-status")) == (201, "oncegate; fwd=bypass")
        assert app.lines("idempotency-attempt") == []
    assert (app.calls, there.slots) == (2, 0)
    await cache.close()


async def test_cache_unavailable_is_what_a_full_memory_answers_to_a_new_key(namespace: str) -> None:
    there = Door(app := Answering(201), MemoryCache(limit_bytes=1800), namespace)
    assert (await there.send(key="k-1")).status == 201
    assert (await there.send(key="k-2")).status == 201
    assert (await there.send(key="k-3")).code == "cache-unavailable"
    assert (await there.send(key="k-1")).replayed, "no record was dropped"
    assert (app.calls, there.slots) == (2, 0)


async def test_overloaded_claims_nothing(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), max_in_flight=1, docs_url=DOCS)
    first = there.begin()
    await app.arrivals()
    call = await there.send(key="k-2")
    whole(there, call, "overloaded", 503, "Too many requests are being executed", retryable=True, key="k-2")
    assert await there.state("k-2") is State.ABSENT
    app.release()
    await first.answered()
    assert (await there.send(key="k-2")).status == 201


async def test_overloaded_still_answers_what_needs_no_attempt(door: MakeDoor) -> None:
    app = Answering(201, 504, 201)
    there = door(app, max_in_flight=1, on_error="retry")
    await there.send(key="done")
    await there.send(key="unknown")
    held = Answering(500, held=True)
    there.middleware.door.app = held
    first = there.begin()
    await held.arrivals()
    assert (await there.send(key="done")).replayed
    assert (await there.send(key="unknown")).code == "outcome-unknown"
    assert (await there.send()).code == "in-flight"
    assert (await there.send(b"other")).code == "key-reused"
    waiter = there.begin(headers=[("prefer", "wait=30")])
    attempts = attempts_of(there.middleware.admissions.in_flight)
    await until(lambda: any(attempt._ended for attempt in attempts.values()), "somebody waits for the attempt")
    held.release()
    await first.answered()
    assert (await waiter.answered()).replayed


async def test_upstream_timeout_then_the_retry_meets_it_in_flight_and_gets_its_result(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), response_timeout=0.05, docs_url=DOCS)
    call = await there.send()
    title = "The upstream did not answer in time"
    whole(there, call, "upstream-timeout", 504, title, retryable=True, key="k-1")
    assert (await there.send()).code == "in-flight"
    app.release()
    retry = await there.send(headers=[("prefer", "wait=30")])
    assert (retry.status, retry.body, retry.replayed) == (201, b"answer 1", True)
    assert app.calls == 1


async def test_full_memory_refuses_new_keys_also_under_fail_open(namespace: str) -> None:
    there = Door(app := Answering(), MemoryCache(limit_bytes=1), namespace, on_cache_down="fail_open")
    call = await there.send()
    assert (call.status, call.code) == (503, "cache-unavailable")
    assert app.calls == 0
    assert there.slots == 0


async def test_exception_of_the_app_is_observed(door: MakeDoor) -> None:
    seen: list[Observation] = []
    there = door(Answering(ValueError("no")), observe=seen.append)
    with pytest.raises(ValueError, match="no"):
        await there.send()
    assert [(each.decision, each.status, each.attempt) for each in seen] == [("first", 500, 1)]


async def test_without_docs_url_a_problem_of_an_app_has_a_name_and_leads_nowhere(door: MakeDoor) -> None:
    call = await door(Answering(201)).send(key="a,b")
    assert call.problem["type"] == "urn:oncegate:problem:key-invalid"
    assert call.value("link") is None


async def test_with_a_slash_at_the_end_of_docs_url_each_problem_has_a_page_of_its_own(door: MakeDoor) -> None:
    call = await door(Answering(201), docs_url="/docs/problems/").send(key="a,b")
    assert call.problem["type"] == "/docs/problems/key-invalid"
    assert call.value("link") == '</docs/problems/key-invalid>; rel="describedby"; type="text/html"'
