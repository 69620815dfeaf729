"""The states of a key, how long each is kept, and what a request meets in it.

Rules of docs/contract.md: R4.8, R5.1, R5.2, R5.3, R5.4, R5.5, R5.6, R5.7, R5.8, R5.9, R5.10, R5.11, R5.14.
"""

import asyncio
from typing import Any

import pytest

from oncegate.cache.record import DEAD_TOKEN, ClaimRequest, Record, State
from oncegate.middleware.rules.settings import Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Door

TOKEN = b"another owner's."


async def kept(there: Door, state: State, seconds: float) -> Record:
    """The record, which is in ``state`` and kept for about so many seconds."""
    claim = await there.claim()
    assert claim.record.state is state
    assert (seconds - 100) * 1000 < claim.remaining_ms <= seconds * 1000
    return claim.record


async def test_in_flight_is_kept_for_its_lease_and_then_reads_unknown(door: MakeDoor) -> None:
    there = door(app := Answering(201, held=True), lease=1000, ttl=5000)
    first = there.begin()
    await app.arrivals()
    await kept(there, State.IN_FLIGHT, 6000)
    assert (await there.send()).code == "in-flight"
    app.release()
    await first.answered()


async def test_in_flight_whose_owner_is_gone_reads_unknown_when_its_lease_lapses(door: MakeDoor) -> None:
    there = door(app := Answering(201))
    await claimed(there, lease_ms=1)
    await there.becomes(State.UNKNOWN)
    assert (await there.send()).code == "outcome-unknown"
    assert app.calls == 0


async def claimed(there: Door, *, lease_ms: int) -> None:
    """Claims the key for another owner, as the default request would."""
    probe = Door(Answering(201), there.cache, there.namespace)
    await probe.send(key="probe")
    record = await probe.record("probe")
    request = ClaimRequest(TOKEN, record.fingerprint, lease_ms, 86400000)
    assert (await there.cache.claim(there.look_up_key(), request)).won


async def test_succeeded_is_replayed_and_a_replay_does_not_prolong_it(door: MakeDoor) -> None:
    there = door(app := Answering(201), ttl=1000)
    await there.send()
    await kept(there, State.SUCCEEDED, 1000)
    before = await there.claim()
    await asyncio.sleep(0.02)
    assert (await there.send()).replayed
    assert (await there.claim()).remaining_ms < before.remaining_ms
    assert app.calls == 1


async def test_succeeded_is_absent_after_ttl(door: MakeDoor) -> None:
    there = door(app := Answering(201), ttl=0.05)
    await there.send()
    await there.becomes(State.ABSENT)
    again = await there.send()
    assert (again.body, again.replayed) == (b"answer 2", False)
    assert app.lines("idempotency-attempt") == ["1"]


async def test_failed_with_on_error_retry_is_a_new_attempt(door: MakeDoor) -> None:
    there = door(app := Answering(500, 404, 201), error_ttl=1000)
    assert (await there.send()).status == 500
    await kept(there, State.FAILED, 1000)
    assert (await there.send()).status == 404
    third = await there.send()
    assert (third.status, third.body, third.replayed) == (201, b"answer 3", False)
    assert [app.lines("idempotency-attempt", call) for call in range(3)] == [["1"], ["2"], ["3"]]
    assert (await there.send()).replayed


async def test_failed_with_on_error_replay_is_replayed_until_error_ttl(door: MakeDoor) -> None:
    there = door(app := Answering(500, 201), on_error="replay", error_ttl=1000)
    await there.send()
    again = await there.send()
    assert (again.status, again.body, again.replayed) == (500, b"answer 1", True)
    assert app.calls == 1


async def test_failed_is_absent_after_error_ttl(door: MakeDoor) -> None:
    there = door(app := Answering(500, 201), on_error="replay", error_ttl=0.05)
    await there.send()
    await there.becomes(State.ABSENT)
    assert (await there.send()).status == 201
    assert app.lines("idempotency-attempt") == ["1"]


async def test_failed_with_raise_on_duplicate_is_replayed_as_the_error_it_is(door: MakeDoor) -> None:
    there = door(Answering(500), on_error="replay", raise_on_duplicate=True)
    await there.send()
    assert (await there.send()).status == 500


async def test_unknown_with_on_unknown_refuse_blocks_for_ttl(door: MakeDoor) -> None:
    there = door(app := Answering(504), ttl=1000)
    assert (await there.send()).status == 504
    await kept(there, State.UNKNOWN, 1000)
    assert (await there.send()).code == "outcome-unknown"
    assert app.calls == 1


async def test_unknown_is_absent_after_ttl(door: MakeDoor) -> None:
    there = door(app := Answering(504, 201), ttl=0.05)
    await there.send()
    await there.becomes(State.ABSENT)
    assert (await there.send()).status == 201
    assert app.lines("idempotency-attempt") == ["1"]


async def test_unknown_with_on_unknown_retry_is_a_new_attempt_of_a_higher_number(door: MakeDoor) -> None:
    there = door(app := Answering(504, 502, 201), on_unknown="retry")
    assert [(await there.send()).status for _ in range(4)] == [504, 502, 201, 201]
    assert [app.lines("idempotency-attempt", call) for call in range(app.calls)] == [["1"], ["2"], ["3"]]


async def test_unknown_keeps_no_body(door: MakeDoor) -> None:
    there = door(Answering(502, body=b"of a gateway behind"))
    assert (await there.send()).body == b"of a gateway behind"
    record = await there.record()
    assert record.response is None or record.response.body is None


@pytest.mark.parametrize(("status", "state"), [(429, State.ABSENT), (201, State.SUCCEEDED)])
async def test_released_leaves_nothing(door: MakeDoor, status: int, state: State) -> None:
    there = door(app := Answering(429, status))
    assert (await there.send()).status == 429
    assert await there.state() is State.ABSENT
    assert (await there.send(b"other")).status == status, "another payload, too"
    assert await there.state() is state
    assert app.lines("idempotency-attempt") == ["1"]


@pytest.mark.parametrize(("first", "found", "kept_s"), [(500, State.FAILED, 2000), (504, State.UNKNOWN, 3000)])
async def test_release_gives_back_what_the_attempt_found(
    door: MakeDoor, first: int, found: State, kept_s: float
) -> None:
    there = door(app := Answering(first, 429, 201), on_unknown="retry", error_ttl=2000, ttl=3000)
    await there.send()
    before = await kept(there, found, kept_s)
    assert (await there.send()).status == 429
    after = await kept(there, found, kept_s)
    assert (after.attempt, after.fingerprint, after.response) == (1, before.fingerprint, None)
    assert after.token == DEAD_TOKEN
    assert (await there.send(b"other")).code == "key-reused"
    assert (await there.send()).status == 201
    assert app.lines("idempotency-attempt") == ["2"], "the released one is not counted"


async def test_mismatch_with_on_mismatch_warn_is_answered_by_the_replay(
    door: MakeDoor, caplog: pytest.LogCaptureFixture
) -> None:
    there = door(app := Answering(201), on_mismatch="warn")
    await there.send()
    other = await there.send(b"other")
    assert (other.body, other.replayed) == (b"answer 1", True)
    assert "payload" in caplog.text
    assert "k-1" not in caplog.text, "keys are not logged"
    assert app.calls == 1


@pytest.mark.parametrize("status", [500, 504])
async def test_mismatch_against_any_other_state_is_an_error_under_warn_too(door: MakeDoor, status: int) -> None:
    there = door(app := Answering(status), on_mismatch="warn", on_unknown="retry", on_error="retry")
    await there.send()
    assert (await there.send(b"other")).code == "key-reused"
    assert app.calls == 1


async def test_exception_out_of_the_app_is_a_failure_and_raised_to_the_server(door: MakeDoor) -> None:
    there = door(app := Answering(ValueError("broken"), 201), on_error="replay")
    call = there.begin()
    with pytest.raises(ValueError, match="broken"):
        await call.answered()
    assert call.messages == [], "the server answers to it"
    replay = await there.send()
    assert (replay.status, replay.body, replay.replayed) == (500, b"Internal Server Error", True)
    assert app.calls == 1


async def test_what_is_no_exception_is_a_failure_too(door: MakeDoor) -> None:
    there = door(Answering(GeneratorExit("broken"), 201), on_error="replay")
    with pytest.raises(GeneratorExit, match="broken"):
        await there.begin().task
    assert (await there.send()).status == 500
    assert there.slots == 0


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_leaves_the_outcome_unknown(door: MakeDoor, kind: type[BaseException]) -> None:
    there = door(Answering(kind(), 201))
    raised: list[type[BaseException]] = []

    async def server(*request: Any) -> None:  # out of a task, it would end the test's event loop
        try:
            await there.middleware(*request)
        except (KeyboardInterrupt, SystemExit) as error:
            raised.append(type(error))

    await there.begin(app=server).answered()
    assert raised == [kind]
    assert (await there.send()).code == "outcome-unknown"


async def test_a_response_that_is_never_completed_is_a_failure(door: MakeDoor) -> None:
    async def silent(scope: object, receive: object, send: object) -> None:
        return

    there = door(silent)
    with pytest.raises(RuntimeError, match="complete"):
        await there.send()
    assert await there.state() is State.FAILED


SUCCESS, FAILURE, UNKNOWN, RELEASE = State.SUCCEEDED, State.FAILED, State.UNKNOWN, State.ABSENT
CLASSES = {
    SUCCESS: [200, 201, 202, 204, 206, 299, 300, 301, 302, 303, 304, 399],
    FAILURE: [400, 402, 404, 405, 409, 410, 412, 415, 418, 422, 451, 499, 500, 501, 503, 505, 507, 599],
    UNKNOWN: [502, 504],
    RELEASE: [307, 308, 401, 403, 408, 425, 429],
}


@pytest.mark.parametrize(
    ("status", "state"), [(status, state) for state, statuses in CLASSES.items() for status in statuses]
)
async def test_status_class(door: MakeDoor, status: int, state: State) -> None:
    there = door(Answering(status, body=b""))
    assert (await there.send()).status == status
    assert await there.state() is state


@pytest.mark.parametrize(
    ("kind", "state"), [("success", SUCCESS), ("failure", FAILURE), ("unknown", UNKNOWN), ("release", RELEASE)]
)
@pytest.mark.parametrize("status", [201, 402, 429, 502])
async def test_status_class_can_be_set_per_route(door: MakeDoor, status: int, kind: str, state: State) -> None:
    routes = [Route.model_validate({"path": "/payments", "status": {status: kind}})]
    there = door(app := Answering(status), routes=routes)
    await there.send()
    assert await there.state() is state
    if state is SUCCESS:
        assert (await there.send()).replayed
        assert app.calls == 1


@pytest.mark.parametrize(
    ("status", "state"),
    [(303, RELEASE), (302, SUCCESS), (404, SUCCESS), (401, SUCCESS), (402, UNKNOWN), (500, RELEASE), (502, RELEASE)],
)
async def test_an_exact_status_counts_before_its_class(door: MakeDoor, status: int, state: State) -> None:
    """R5.10"""
    by_status = {"4xx": "success", "402": "unknown", "5xx": "release", "3xx": "release", "302": "success"}
    there = door(Answering(status, body=b""), routes=[Route.model_validate({"path": "/payments", "status": by_status})])
    await there.send()
    assert await there.state() is state


@pytest.mark.parametrize("named", ["1xx", "6xx", "4XX", "4x", "199", "600", ""])
def test_what_is_no_status_and_no_class_is_refused(named: str) -> None:
    with pytest.raises(ValueError, match="status"):
        Route.model_validate({"path": "/payments", "status": {named: "success"}})
