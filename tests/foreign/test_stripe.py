"""stripe-node and stripe-python: every problem is an error for them, and their own retries keep the key.

stripe-node takes any JSON without a member ``error`` for a success, whatever its status.

Rules of docs/contract.md: R4.5.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import stripe

from oncegate.middleware.outcome.problem_kinds import KINDS
from oncegate.middleware.outcome.problems import problem
from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import free_port
from testing.waiting import wait_until
from tests.foreign.conftest import HERE, Node, decided
from tests.system.conftest import Start

Calls = list[dict[str, Any]]
Sdk = Callable[[str, Calls], Any]
"""Makes the calls of a list at the URL, one after the other. What comes of each: ``made``, an id; or ``raised`` and more."""

MADE = Reply(200, (("content-type", "application/json"),), b'{"id": "pi_1", "object": "payment_intent"}')


def call(key: str | None, resource: str = "paymentIntents", *, amount: int = 100, retries: int = 0) -> dict[str, Any]:
    return {"resource": resource, "key": key, "amount": amount, "retries": retries}


@pytest.fixture(params=["stripe-node", "stripe-python"])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    if request.param == "stripe-python":
        return in_python
    node: Node = request.getfixturevalue("node")
    return lambda url, calls: node.run(HERE / "stripe.mjs", url=url, calls=calls)


def in_python(url: str, calls: Calls) -> Any:
    results: list[dict[str, Any]] = []
    for each in calls:
        client = stripe.StripeClient("sk_test_1", base_addresses={"api": url}, max_network_retries=each["retries"])
        resource: str = each["resource"]
        service = getattr(client.v1, {"paymentIntents": "payment_intents"}.get(resource, resource))
        options = {} if each["key"] is None else {"idempotency_key": each["key"]}
        try:
            made = service.create(params={"amount": each["amount"], "currency": "eur"}, options=options)
            results.append({"made": made.id})
        except stripe.StripeError as error:
            details = error.error
            assert details is not None
            results.append(
                {
                    "raised": f"Stripe{type(error).__name__}",
                    "type": details.type,
                    "code": details.code,
                    "message": details.message,
                    "status": error.http_status,
                }
            )
    return results


RAISED = {400: "StripeInvalidRequestError", 401: "StripeAuthenticationError", 429: "StripeRateLimitError"}
"""By status, which is what both go by first; other statuses of ours: an API error."""


def expected(slug: str) -> dict[str, Any]:
    kind = KINDS[slug]
    raised = RAISED.get(kind.status, "StripeAPIError")
    if kind.status == 400 and kind.error_type == "idempotency_error":
        raised = "StripeIdempotencyError"
    return {"raised": raised, "type": kind.error_type, "code": slug, "status": kind.status}


def without_message(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "message"}


def test_every_problem_is_raised(sdk: Sdk, ledger: Ledger) -> None:
    for slug in KINDS:
        answer = problem(slug, f"This is {slug}.", docs_url="https://example.com/docs", key=slug)
        fields = tuple((name.decode(), value.decode()) for name, value in answer.headers if name != b"content-length")
        ledger.answer(slug, Reply(answer.status, fields, answer.body))
    results = sdk(ledger.url, [call(slug) for slug in KINDS])
    assert [without_message(result) for result in results] == [expected(slug) for slug in KINDS]
    assert [result["message"] for result in results] == [f"This is {slug}." for slug in KINDS]


def test_what_a_gateway_refuses_is_raised(sdk: Sdk, ledger: Ledger, gateway: Gateway) -> None:
    used, broken, done = fresh_key(), fresh_key(), fresh_key()
    for key in (used, done):
        ledger.answer(key, MADE)
    ledger.answer(broken, Reply(cut="before-head"))
    results = sdk(
        gateway.url,
        [
            call(used),
            call(used),
            call(used, amount=200),
            call("a,b"),
            call(fresh_key(), "customers"),
            call(fresh_key(), "tokens"),
            call(broken),
            call(broken),
            call(done, "products"),
            call(done, "products"),
        ],
    )
    assert [result.get("made", result.get("code")) for result in results] == [
        "pi_1",
        "pi_1",
        "key-reused",
        "key-invalid",
        "caller-missing",
        "payload-too-large",
        "upstream-failed",
        "outcome-unknown",
        "pi_1",
        "duplicate",
    ]
    for result in results:
        assert "made" in result or without_message(result) == expected(result["code"])
    assert [len(ledger.arrivals(key)) for key in (used, broken, done)] == [1, 1, 1]


def test_a_gateway_that_reaches_nothing_is_an_error(sdk: Sdk, start: Start) -> None:
    nowhere = free_port()
    upstream, cache = f"http://127.0.0.1:{nowhere}", f"redis://127.0.0.1:{nowhere}/0"
    gateways = {"upstream-unreachable": start(upstream), "cache-unavailable": start(upstream, cache)}
    for slug, gateway in gateways.items():
        (result,) = sdk(gateway.ready().url, [call(fresh_key())])
        assert without_message(result) == expected(slug)


def test_its_own_retries_keep_the_key_that_it_made(sdk: Sdk, ledger: Ledger, gateway: Gateway) -> None:
    ledger.answer("/v1/refunds", *[Reply(cut="before-head"), MADE] * 2)  # for each of both
    (result,) = sdk(gateway.url, [call(None, "refunds", retries=2)])
    assert result == {"made": "pi_1"}
    first, second = ledger.arrivals("/v1/refunds")[-2:]
    assert first.value("idempotency-key") == second.value("idempotency-key") is not None
    assert [first.value("idempotency-attempt"), second.value("idempotency-attempt")] == ["1", "2"]


def test_its_own_retries_execute_nothing_of_unknown_outcome_again(sdk: Sdk, ledger: Ledger, gateway: Gateway) -> None:
    ledger.answer("/v1/plans", Reply(cut="before-head"))
    before = len(ledger.arrivals("/v1/plans"))
    (result,) = sdk(gateway.url, [call(None, "plans", retries=2)])
    assert without_message(result) == expected("outcome-unknown")
    assert len(ledger.arrivals("/v1/plans")) == before + 1


def test_its_own_retries_wait_for_a_request_in_flight(sdk: Sdk, ledger: Ledger, gateway: Gateway) -> None:
    key, before = fresh_key(), decided(gateway, "in-flight")
    with ThreadPoolExecutor(2) as threads, ledger.gate() as gate:
        ledger.answer(key, replace(MADE, gate=gate), Reply(500))
        both = [threads.submit(sdk, gateway.url, [call(key, retries=20)]) for _ in range(2)]
        wait_until(lambda: decided(gateway, "in-flight") > before, "one of them has met the other in flight")
        gate.open()
        assert [each.result(DEADLINE) for each in both] == [[{"made": "pi_1"}]] * 2
    assert len(ledger.arrivals(key)) == 1
