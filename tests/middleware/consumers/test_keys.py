"""Which command a delivery is: by keys and payloads as messages bring them, and as nothing else that one may bring."""

from typing import Any
from uuid import UUID

import pytest

from oncegate import Action, Delivery, DeliveryDecision, Recording
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import PAYLOAD, decided


async def test_a_message_without_a_key_runs_unprotected(subscribe: MakeSubscription) -> None:
    for _ in range(2):
        begun = await subscribe("ledger").begin(Delivery(None, PAYLOAD, message_id="m-1"))
        assert (begun.run, begun.attempt, begun.record) == (True, 0, "")
        assert await begun.execution.succeed() is Recording.NO_RECORD
        assert begun.execution.action is Action.ACKNOWLEDGE


async def test_a_message_without_a_key_is_rejected(subscribe: MakeSubscription) -> None:
    begun = await subscribe("ledger", on_missing_key="reject").begin(Delivery(None, message_id="m-1"))
    assert (begun.decision, begun.action) == (DeliveryDecision.REJECTED, Action.DEAD_LETTER)


async def test_a_message_without_a_key_is_known_by_its_id(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger", on_missing_key="message_id")
    await (await ledger.begin(Delivery(None, PAYLOAD, "m-1"))).execution.succeed()
    assert await decided(ledger, Delivery(None, PAYLOAD, "m-1")) is DeliveryDecision.DUPLICATE
    assert await decided(ledger, Delivery("m-1", PAYLOAD)) is DeliveryDecision.RUN, "a key is no id"
    assert await decided(ledger, Delivery(None, PAYLOAD, "m-1", caller="bob")) is DeliveryDecision.RUN
    assert await decided(ledger, Delivery(None, PAYLOAD)) is DeliveryDecision.REJECTED


class Unspelled:
    """What a message's decoder may make: no JSON form, and a property that fails."""

    @property
    def __dataclass_fields__(self) -> Any:
        raise LookupError("no fields")


ITSELF: list[Any] = []
ITSELF.append(ITSELF)
KEYS: list[Any] = [b"", b"\xff", True, 1.5, ["key-1"], {}, object(), 10**300, 10**5000]
PAYLOADS: list[Any] = [object(), float("nan"), ITSELF, {1: "a", "1": "b"}, iter(()), Unspelled()]
OTHERS: list[dict[str, Any]] = [
    {"record": b"x"},
    {"record": 7},
    {"fingerprint": "short"},
    {"fingerprint": 16},
    {"caller": 1.5},
    {"caller": b"\xff"},
    {"attempts_before": "1"},
    {"attempts_before": -1},
    {"attempts_before": None},
]
WRONG = [
    *[Delivery(key) for key in KEYS],
    *[Delivery("key-1", payload) for payload in PAYLOADS],
    *[Delivery("key-1", **other) for other in OTHERS],
]


@pytest.mark.parametrize(
    "delivery",
    [
        Delivery(""),
        Delivery("k" * 256),
        Delivery("\ud800"),
        Delivery("key-1", record="../key:x"),
        Delivery("key-1", fingerprint=b"short"),
        *WRONG,
    ],
)
async def test_a_delivery_that_can_t_be_known_is_rejected(subscribe: MakeSubscription, delivery: Delivery) -> None:
    begun = await subscribe("ledger").begin(delivery)
    assert (begun.decision, begun.action) == (DeliveryDecision.REJECTED, Action.DEAD_LETTER)
    assert begun.reason


async def test_a_key_of_255_characters_of_any_kind_is_one(subscribe: MakeSubscription) -> None:
    assert await decided(subscribe("ledger"), Delivery("ü " * 127 + "k")) is DeliveryDecision.RUN


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        (Delivery(b"key-1"), Delivery("key-1")),
        (Delivery(7), Delivery("7")),
        (Delivery(UUID(int=7)), Delivery(str(UUID(int=7)))),
        (Delivery("k", "caf\u00e9"), Delivery("k", "caf\u00e9".encode())),
        (Delivery("k", "\ud800"), Delivery("k", b"\xed\xa0\x80")),
        (Delivery("k", {"b": 1, "a": [None]}), Delivery("k", b'{"a":[null],"b":1}')),
        (Delivery("k", None), Delivery("k", b"null")),
        (Delivery("k", caller=b"bob"), Delivery("k", caller="bob")),
        (Delivery("k", caller=8), Delivery("k", caller="8")),
    ],
)
async def test_a_key_and_a_payload_are_taken_as_consumers_have_them(
    subscribe: MakeSubscription, given: Delivery, spelled: Delivery
) -> None:
    begun = await subscribe("ledger").begin(given)
    assert begun.run
    await begun.execution.succeed()
    assert await decided(subscribe("ledger"), spelled) is DeliveryDecision.DUPLICATE


async def test_a_broker_s_id_may_be_bytes(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger", on_missing_key="message_id")
    await (await ledger.begin(Delivery(None, message_id=b"1-0"))).execution.succeed()
    assert await decided(ledger, Delivery(None, message_id="1-0")) is DeliveryDecision.DUPLICATE
    assert await decided(ledger, Delivery(None, message_id=b"\xff")) is DeliveryDecision.REJECTED
