"""Commands forwarded to an HTTP service: what it gets, and what its answers mean.

Rules of docs/contract.md: R8.22, R8.29.
"""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from testing.ledger import Ledger, Reply
from testing.servers import free_port
from tests.worker.shop import Shop


@pytest.fixture(scope="module")
def service() -> Iterator[Ledger]:
    """It counts what arrives for each key, and answers as it was told."""
    with Ledger() as running:
        yield running


def test_a_service_gets_the_request_as_it_was_with_its_key(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-whole"
    shop.submit(
        key,
        b'{"amount": 1.0}',
        target="/bookings/%7Ea;b=c?x=1&y=%20",
        content_type="application/vnd.shop+json",
        correlation="trace-1",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )
    shop.work(forward=service.url, forward_headers={"X-Service-Token": "of the worker"})
    assert shop.state(key) == "succeeded"
    (request,) = service.arrivals(key)
    assert request.line == "POST /bookings/%7Ea;b=c?x=1&y=%20 HTTP/1.1"
    assert request.body == b'{"amount": 1.0}'
    for name, value in {
        "content-type": "application/vnd.shop+json",
        "idempotency-attempt": "1",
        "x-correlation-id": "trace-1",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "x-service-token": "of the worker",
    }.items():
        assert request.values(name) == [value]
    assert request.values("authorization") == []


def test_its_answer_is_the_result(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-answer"
    service.answer(key, Reply(201, (("x-receipt", "7"), ("set-cookie", "a=b")), b'{"receipt":7}'))
    shop.submit(key)
    shop.work(forward=service.url)
    response = shop.response(key)
    assert (response.status, response.body) == (201, b'{"receipt":7}')
    assert (b"x-receipt", b"7") in response.headers
    assert b"set-cookie" not in dict(response.headers)


def test_headers_that_travelled_reach_the_service_and_the_worker_s_own_win(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-lines"
    lines = {
        "content-type": "application/json",
        "content-encoding": "gzip",
        "idempotency-key": f'"{key}"',
        "x-user": "bj\xf6rn",
        "x-tenant": "the caller's",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    shop.submit(key, gzip.compress(b"{}"), headers=tuple(lines.items()), traceparent=lines["traceparent"])
    shop.work(forward=service.url, forward_headers={"X-Tenant": "the worker's"})
    assert shop.state(key) == "succeeded"
    (request,) = service.arrivals(f'"{key}"')  # as it came
    assert gzip.decompress(request.body) == b"{}"
    for name, value in (lines | {"x-tenant": "the worker's"}).items():
        assert request.values(name) == [value]


def test_a_service_gets_the_command_s_aggregate_and_number_from_the_worker_alone(shop: Shop, service: Ledger) -> None:
    """Percent-encoded where a field can't have it as it is: blanks at its ends would be lost, and with them the identity."""
    key = f"{shop.namespace}-numbered"
    lines = (("oncegate-aggregate", "another's"), ("oncegate-sequence", "99"))
    shop.submit(key, headers=lines, aggregate="caf\xe9/50%\r\n ", sequence=2**63 - 1)
    plain = f"{shop.namespace}-not-numbered"
    shop.submit(plain)
    shop.work(forward=service.url)
    assert shop.state(key) == "succeeded"
    (request,) = service.arrivals(key)
    assert request.values("oncegate-aggregate") == ["caf%C3%A9/50%25%0D%0A%20"]
    assert request.values("oncegate-sequence") == [str(2**63 - 1)]
    (request,) = service.arrivals(plain)
    assert request.values("oncegate-aggregate") == request.values("oncegate-sequence") == []


def test_a_key_that_is_no_token_is_quoted(shop: Shop, service: Ledger) -> None:
    key = f'{shop.namespace} "x" \\'
    shop.submit(key)
    shop.work(forward=service.url)
    assert shop.state(key) == "succeeded"
    assert len(service.arrivals(f'"{shop.namespace} \\"x\\" \\\\"')) == 1


@pytest.mark.parametrize("status", [500, 503, 429, 408, 401, 403, 425, 502, 504])
def test_an_answer_that_may_be_another_one_later_is_tried_again(shop: Shop, service: Ledger, status: int) -> None:
    key = f"{shop.namespace}-{status}"
    service.answer(key, Reply(status), Reply(status), Reply(201))
    shop.submit(key)
    shop.work(forward=service.url, retry_base=0.01)
    record = shop.record(key)
    assert (record.state.value, record.attempt) == ("succeeded", 3)
    assert service.attempts(key) == ["1", "2", "3"]


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_a_refusal_is_final(shop: Shop, service: Ledger, status: int) -> None:
    key = f"{shop.namespace}-{status}"
    service.answer(key, Reply(status, body=b"no: secret"))
    shop.submit(key)
    worker = shop.work(forward=service.url)
    assert (shop.state(key), shop.response(key).status) == ("failed", status)
    (letter,) = shop.letters()
    assert (letter["dead.reason"], letter["dead.attempts"]) == ("rejected", "1")
    assert letter["dead.error"] == f"the service refused the command with status {status}"
    assert len(service.arrivals(key)) == 1
    assert "secret" not in worker.text()


@pytest.mark.parametrize(("path", "target"), [("/bookings", "/bookings"), ("/bücher/*", "/b%C3%BCcher/7?a=b")])
def test_a_route_s_table_says_what_a_status_means(shop: Shop, service: Ledger, path: str, target: str) -> None:
    done, later = f"{shop.namespace}-done", f"{shop.namespace}-later"
    service.answer(done, Reply(409))
    service.answer(later, Reply(422), Reply(201))
    for key in (done, later):
        shop.submit(key, target=target)
    routes = [{"path": path, "status": {"409": "success", "422": "release"}}]
    shop.work(forward=service.url, retry_base=0.01, settings={"routes": routes})
    assert shop.state(done) == "succeeded"
    assert shop.record(later).attempt == 2


def test_no_service_can_have_attempts_forgotten_by_what_it_asks_to_wait(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-later"
    service.answer(key, *[Reply(503, (("retry-after", "3600"),))] * 2)
    shop.submit(key)
    shop.work(forward=service.url, max_attempts=2, settings={"idempotency__ttl": 10})
    assert shop.record(key).attempt == 2
    assert [letter["dead.attempts"] for letter in shop.letters()] == ["2"]


def test_retry_after_is_waited_for(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-later"
    service.answer(key, Reply(429, (("retry-after", "3600"),)), Reply(201))
    shop.submit(key)
    worker = shop.start(forward=service.url, retry_base=0.001)
    shop.becomes(key, "failed")
    shop.submit(f"{key}-next")
    shop.becomes(f"{key}-next", "succeeded")
    assert len(service.arrivals(key)) == 1
    assert worker.stop() == 0
    assert shop.pending() == 1


def test_a_service_that_keeps_failing_gets_a_dead_letter_in_the_end(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-never"
    service.answer(key, Reply(500))
    shop.submit(key)
    shop.work(forward=service.url, retry_base=0.01, max_attempts=3)
    record, response = shop.record(key), shop.response(key)
    assert (record.state.value, response.status, record.attempt) == ("failed", 500, 3)
    assert [letter["dead.reason"] for letter in shop.letters()] == ["exhausted"]


@pytest.mark.parametrize("cut", ["before-head", "in-body"])
def test_after_an_answer_that_broke_off_the_service_is_asked_again_with_the_key(
    shop: Shop, service: Ledger, cut: Any
) -> None:
    key = f"{shop.namespace}-{cut}"
    service.answer(key, Reply(cut=cut), Reply(201))
    shop.submit(key)
    shop.work(forward=service.url, retry_base=0.01)
    assert shop.record(key).attempt == 2
    assert service.attempts(key) == ["1", "2"]


def test_while_the_service_is_down_commands_wait_and_no_attempt_counts(shop: Shop, service: Ledger) -> None:
    port = free_port()
    shop.submit(f"{shop.namespace}-k")
    worker = shop.start(forward=f"http://127.0.0.1:{port}", retry_base=0.01, retry_cap=0.05, max_attempts=2)
    worker.logs("nothing was begun", times=5)
    assert worker.stop() == 0
    assert shop.state(f"{shop.namespace}-k") == "absent"
    shop.work(forward=service.url)
    assert shop.record(f"{shop.namespace}-k").attempt == 1


def test_a_service_that_does_not_answer_is_cut_off(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-silent"
    with service.gate() as gate:
        service.answer(key, Reply(gate=gate), Reply(201))
        shop.submit(key)
        shop.work(forward=service.url, retry_base=0.01, settings={"idempotency__attempt_timeout": 3})
        assert shop.record(key).attempt == 2


def test_killed_before_its_success_is_recorded_a_service_that_keeps_keys_does_it_once(
    shop: Shop, service: Ledger
) -> None:
    """The key is passed through, so the window is the service's to close: here by a gateway of its own in front of it."""
    key = f"{shop.namespace}-window"
    service.answer(key, Reply(201, body=b"first"), Reply(201, body=b"second"))
    _, url = shop.serve([], upstream=service.url)
    shop.submit(key)
    shop.start(forward=url, dies_at="before-complete").dies()
    assert len(service.arrivals(key)) == 1
    shop.work(forward=url)
    assert (shop.record(key).attempt, shop.response(key).body) == (2, b"first")
    assert len(service.arrivals(key)) == 1


def test_a_service_that_is_slower_than_its_own_gateway_loses_no_command(shop: Shop, service: Ledger) -> None:
    """Its gateway answers 504 and goes on, then 409 until it has ended: neither is an answer of the service."""
    key = f"{shop.namespace}-slow"
    with service.gate() as gate:
        service.answer(key, Reply(201, body=b"done", gate=gate))
        _, url = shop.serve([], upstream=service.url, settings={"idempotency__response_timeout": 0.2})
        shop.submit(key)
        worker = shop.start(forward=url, retry_base=0.01, retry_cap=0.05, max_attempts=2)
        worker.logs("status 409, in-flight", times=3)
    shop.done()
    record, response = shop.record(key), shop.response(key)
    assert (record.state.value, record.attempt, response.status, response.body) == ("succeeded", 2, 201, b"done")
    assert len(service.arrivals(key)) == 1
    assert shop.letters() == []


PROBLEM = (("content-type", "application/problem+json; charset=utf-8"),)


def problem(status: int, code: str, *headers: tuple[str, str], **members: Any) -> Reply:
    body = {"type": f"https://example.com#{code}", "status": status, "code": code, **members}
    return Reply(status, (*PROBLEM, *headers), json.dumps(body).encode())


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *[(409, "in-flight"), (503, "overloaded"), (429, "too-many-keys"), (503, "cache-unavailable")],
        *[(408, "request-timeout"), (502, "upstream-unreachable")],
    ],
)
def test_a_problem_after_which_nothing_was_executed_is_no_attempt(
    shop: Shop, service: Ledger, status: int, code: str
) -> None:
    key = f"{shop.namespace}-{code}"
    service.answer(key, *[problem(status, code, retryable=True)] * 3, Reply(201))
    shop.submit(key)
    # A route's table is about the service's own answers, not about its gateway's.
    routes = [{"path": "/*", "status": {str(status): "success"}}]
    shop.work(forward=service.url, retry_base=0.01, max_attempts=1, settings={"routes": routes})
    record, response = shop.record(key), shop.response(key)
    assert (record.state.value, record.attempt, response.status) == ("succeeded", 1, 201)


def test_what_its_gateway_asks_to_wait_is_waited_for(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-busy"
    service.answer(key, problem(409, "in-flight", ("retry-after", "3600"), retryable=True), Reply(201))
    shop.submit(key)
    worker = shop.start(forward=service.url, retry_base=0.001)
    worker.logs("nothing was begun")
    shop.submit(f"{key}-next")
    shop.becomes(f"{key}-next", "succeeded")
    assert len(service.arrivals(key)) == 1


def test_another_problem_that_is_retryable_is_tried_again_and_counts(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-other"
    service.answer(key, problem(422, "not-yet", retryable=True))
    shop.submit(key)
    shop.work(forward=service.url, retry_base=0.01, max_attempts=3)
    assert shop.record(key).attempt == 3
    assert [letter["dead.reason"] for letter in shop.letters()] == ["exhausted"]


@pytest.mark.parametrize("members", [{"retryable": False}, {"retryable": "true"}, {"original_result": {"status": "x"}}])
def test_another_problem_is_refused_like_any_answer_of_its_status(
    shop: Shop, service: Ledger, members: dict[str, Any]
) -> None:
    key = f"{shop.namespace}-refused"
    service.answer(key, problem(409, "duplicate", **members))
    shop.submit(key)
    shop.work(forward=service.url)
    assert shop.state(key) == "failed"
    assert [letter["dead.reason"] for letter in shop.letters()] == ["rejected"]


def test_a_success_that_its_gateway_tells_of_without_its_body_is_one(shop: Shop, service: Ledger) -> None:
    """The first answer was lost on the way; the gateway's record has no body, so the retry gets 409 ``duplicate``."""
    key = f"{shop.namespace}-omitted"
    service.answer(key, Reply(201, (("x-receipt", "7"),), b"x" * 5000))
    _, url = shop.serve([], upstream=service.url, settings={"idempotency__max_result": 1000})
    shop.submit(key)
    shop.start(forward=url, dies_at="before-complete").dies()
    shop.work(forward=url)
    record, response = shop.record(key), shop.response(key)
    assert (record.state.value, record.attempt, response.status, response.body) == ("succeeded", 2, 201, None)
    assert (b"x-receipt", b"7") in response.headers
    assert len(service.arrivals(key)) == 1


def test_an_answer_that_is_too_large_is_a_success_without_its_body(shop: Shop, service: Ledger) -> None:
    key = f"{shop.namespace}-large"
    service.answer(key, Reply(200, body=b"x" * 300_000))
    shop.submit(key)
    shop.work(forward=service.url, settings={"idempotency__max_result": 1000})
    response = shop.response(key)
    assert (shop.state(key), response.status, response.body) == ("succeeded", 200, None)


def test_a_target_that_would_smuggle_a_request_is_not_sent(shop: Shop, service: Ledger) -> None:
    before = service.total()
    for number, change in enumerate(
        ({b"target": b"/a HTTP/1.1\r\nx: y"}, {b"content-type": b"a\r\nx: y"}, {b"method": b"G ET"})
    ):
        fields: Any = shop.command(f"{shop.namespace}-{number}").fields() | change
        shop.redis.xadd(shop.stream, fields)
    shop.work(forward=service.url)
    assert [letter["dead.reason"] for letter in shop.letters()] == ["rejected"] * 3
    assert service.total() == before
