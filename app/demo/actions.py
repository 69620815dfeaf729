"""The page's buttons as data: what each sends, what dies meanwhile, and the same in curl."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oncegate.app.demo.stack import GATEWAY, PAYMENTS, REDIS
from oncegate.app.demo.upstream import SLOW, SLOW_ANSWER, Progress

AMOUNT, OTHER_AMOUNT = 100, 999


class PaymentRequest(NamedTuple):
    """A POST as curl sends it."""

    path: str
    key: str
    body: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: ``process`` is killed ``at`` a payment's progress, or at once (``None``): then it is away until it may start."""

    process: str
    at: Progress | None


FAULTS = {
    "gateway-dies": Fault(GATEWAY, "arrived"),
    "payments-die-before-booking": Fault(PAYMENTS, "arrived"),
    "payments-die-after-booking": Fault(PAYMENTS, "booked"),
    "redis-dies": Fault(REDIS, None),
}
REDIS_STARTS = "redis-starts"


@dataclass(frozen=True, slots=True)
class Button:
    """A button, ``name`` in its address. ``fresh``: with a new key, else with the last one; ``path`` and ``amount``: ``None``
    where they are the first request's. ``copies`` are sent at once. ``fault`` is one of `FAULTS`.
    """

    name: str
    label: str
    promise: str
    fresh: bool = True
    path: str | None = "/payments"
    amount: int | None = AMOUNT
    copies: int = 1
    fault: str = ""


ACTIONS = (
    Button("pay", "Pay", "A new key: the payment is executed, and its outcome recorded."),
    Button(
        "pay-again",
        "Pay again",
        "The same key once more: what is recorded is the answer, and the service is not called.",
        fresh=False,
        path=None,
        amount=None,
    ),
    Button(
        "pay-twice",
        "Pay twice at once",
        "One of the two is executed, for 5 seconds. The other one is refused meanwhile: 409.",
        path=SLOW,
        copies=2,
    ),
    Button(
        "pay-another-amount",
        "Pay with another amount",
        "The same key with another payload: 422, and nothing is executed.",
        fresh=False,
        path=None,
        amount=OTHER_AMOUNT,
    ),
    Button(
        "gateway-dies",
        "Pay while the gateway dies",
        "The service has the payment when the gateway is killed. Whether it was booked, the gateway can't know once it is back: "
        "a retry is refused, and never booked again.",
        path=SLOW,
        fault="gateway-dies",
    ),
    Button(
        "payments-die-before-booking",
        "Pay while the service dies before it has booked",
        "Nothing is booked. But the gateway sees a broken connection only: a retry is refused until somebody has looked.",
        path=SLOW,
        fault="payments-die-before-booking",
    ),
    Button(
        "payments-die-after-booking",
        "Pay while the service dies after it has booked",
        "Booked, but the answer is lost. To the gateway it is the same as above, and a retry books nothing.",
        path=SLOW_ANSWER,
        fault="payments-die-after-booking",
    ),
    Button(
        "redis-away",
        "Pay while Redis is away",
        "Without its records the gateway executes nothing: 503. Once Redis is back, the retry is the first request.",
        fault="redis-dies",
    ),
)
BY_NAME = {action.name: action for action in ACTIONS}


def request_of(action: Button, last: PaymentRequest | None, fresh_key: str) -> PaymentRequest:
    """The request that the action sends. One that repeats, before anything was sent, has the first key."""
    if action.fresh or last is None:
        return PaymentRequest(action.path or "/payments", fresh_key, body_of(action.amount or AMOUNT))
    body = last.body if action.amount is None else body_of(action.amount)
    return PaymentRequest(action.path or last.path, last.key, body)


def body_of(amount: int) -> str:
    """A payment's body."""
    return f'{{"amount": {amount}}}'


def curl_lines(action: Button, request: PaymentRequest, gateway: str, page: str) -> Sequence[str]:
    """The same in a shell."""
    pay = f"curl -i {gateway}{request.path} -H {shlex.quote('Idempotency-Key: ' + request.key)} -d {shlex.quote(request.body)}"
    if action.copies > 1:
        return *[f"{pay} &"] * action.copies, "wait"
    if not action.fault:
        return (pay,)
    armed = f"curl -X POST {page}/faults/{action.fault}"
    if FAULTS[action.fault].at is None:
        return armed, pay, f"curl -X POST {page}/faults/{REDIS_STARTS}", pay
    return armed, pay
