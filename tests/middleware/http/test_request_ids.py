"""The id of a request that something is said of: taken or made, the same in the problem and in the log; and its trace's.

Rules of docs/contract.md: R3.27, R4.37.
"""

import logging
import os
import re
from typing import Any

import pytest

from oncegate.middleware.outcome.errors import NotProcessed
from oncegate.middleware.rules.headers.request_id import made, request_id, trace_id
from testing.waiting import until
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

MADE = re.compile("[0-9a-f]{12}-[0-9a-f]{8}")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
UNSHOWN = frozenset({b"idempotency-key", b"authorization", b"cookie"})


def of(*values: bytes, **others: bytes) -> str:
    headers = [(b"x-request-id", value) for value in values]
    headers += [(name.replace("_", "-").encode(), value) for name, value in others.items()]
    return request_id({"headers": headers}, UNSHOWN)


@pytest.mark.parametrize("value", [b"a", b"0", b"-", b"A.b_c-9", b"x" * 128, b"0190b2f2-0000-7000-8000-000000000000"])
def test_a_good_one_is_taken(value: bytes) -> None:
    assert of(value).encode() == value


@pytest.mark.parametrize(
    "value", [b"", b"x" * 129, b"a b", b"a,b", b'"a"', b"a\n", b"a\x00", b"a;b", b"\xc3\xa9", b"../a", b"{}", b"$(a)"]
)
def test_another_one_is_replaced(value: bytes) -> None:
    assert MADE.fullmatch(of(value))


def test_two_are_none() -> None:
    assert MADE.fullmatch(of(b"a", b"a"))


def test_one_that_is_a_secret_is_replaced() -> None:
    assert MADE.fullmatch(of(b"k-1", idempotency_key=b"k-1"))
    assert MADE.fullmatch(of(b"k-1", idempotency_key=b'"k-1"; v=1'))
    assert MADE.fullmatch(of(b"t-1", authorization=b"Bearer t-1"))
    assert MADE.fullmatch(of(b"s-1", cookie=b"a=b;session=s-1"))
    assert of(b"k-1", idempotency_key=b"k-10", x_correlation_id=b"k-1") == "k-1"


def test_it_stays_the_same_and_is_another_one_in_each_request() -> None:
    scope: dict[str, Any] = {"headers": []}
    assert request_id(scope, UNSHOWN) == request_id(scope, UNSHOWN)
    assert len({made() for _ in range(1000)}) == 1000


def test_a_forked_process_makes_its_own() -> None:
    ends = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(ends[1], made().encode())
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    theirs = os.read(ends[0], 100).decode()
    os.close(ends[0])
    os.close(ends[1])
    assert theirs.partition("-")[0] != made().partition("-")[0]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([f"00-{TRACE}-00f067aa0ba902b7-01"], TRACE),
        ([f"cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later"], TRACE),
        ([f"ff-{TRACE}-00f067aa0ba902b7-01"], ""),
        ([f"00-{TRACE.upper()}-00f067aa0ba902b7-01"], ""),
        ([f"00-{'0' * 32}-00f067aa0ba902b7-01"], ""),
        ([f"00-{TRACE}-00f067aa0ba902b7"], ""),
        ([f"00-{TRACE[1:]}-00f067aa0ba902b7-01"], ""),
        (["nonsense"], ""),
        ([f"00-{TRACE}-00f067aa0ba902b7-01"] * 2, ""),
        ([], ""),
    ],
)
def test_a_trace_is_who_traceparent_names(sent: list[str], expected: str) -> None:
    assert trace_id({"headers": [(b"traceparent", value.encode()) for value in sent]}) == expected


async def test_a_problem_has_the_request_s_own_id_and_so_has_the_log(
    door: MakeDoor, caplog: pytest.LogCaptureFixture
) -> None:
    there = door(Answering(NotProcessed("no connection")))
    with caplog.at_level(logging.WARNING):
        call = await there.send(headers=[("x-request-id", "r-1"), ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")])
        other = await there.send(key="k-2")
    assert call.value("x-request-id") == call.problem["request_id"] == "r-1"
    line, other_line = [vars(record) for record in caplog.records if "nothing was sent" in record.message]
    assert (line["request_id"], line["trace_id"]) == ("r-1", TRACE)
    assert other_line["request_id"] == other.problem["request_id"] == other.value("x-request-id")
    assert "trace_id" not in other_line


async def test_a_line_about_an_attempt_has_the_id_of_its_request(
    door: MakeDoor, caplog: pytest.LogCaptureFixture
) -> None:
    there = door(app := Answering(201, held=True), attempt_timeout=0.05)
    with caplog.at_level(logging.WARNING):
        call = there.begin(headers=[("x-request-id", "r-1")])
        await until(lambda: "ran into attempt_timeout" in caplog.text)
    await call.answered()
    app.release()
    about = [vars(record) for record in caplog.records if record.name in ("oncegate.attempt", "oncegate.http")]
    assert about
    assert {record.get("request_id") for record in about} == {"r-1"}


async def test_a_replay_has_none_that_is_another_request_s(door: MakeDoor) -> None:
    there = door(Answering(201, headers=[(b"x-request-id", b"the first one's")]))
    first, replay = await there.send(), await there.send()
    assert first.value("x-request-id") == "the first one's", "what an app says of its own answer is passed on"
    assert replay.replayed
    assert replay.value("x-request-id") is None


async def test_each_problem_has_another_id(door: MakeDoor) -> None:
    there = door(Answering(201))
    await there.send()
    answers = [await there.send(b"other") for _ in range(3)]
    found = [answer.problem["request_id"] for answer in answers]
    assert len(set(found)) == 3
    assert found == [answer.value("x-request-id") for answer in answers]
