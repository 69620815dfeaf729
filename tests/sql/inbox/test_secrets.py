"""An inbox with a secret: nobody can test a guess by its tables, and no message is executed again while one replaces another.

Rule of docs/contract.md: R6.24.
"""

import asyncio
import json
from base64 import b64encode
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from oncegate import Delivery, Subscription
from oncegate.cache.memory.store import MemoryCache
from oncegate.faststream import SubscriptionMiddleware
from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.outcome.errors import Parked
from oncegate.middleware.rules.keys.digests import UNKEYED, given_digests
from oncegate.middleware.rules.keys.key import fingerprint, record_id, record_key
from oncegate.sql import Inbox, KeyReused, Outbox
from oncegate.sql.database.errors import SequenceForked
from testing.command_line import invoke
from tests.sql.held import PATIENT, Pool, deliver_at_once
from tests.sql.places import EFFECT, Place

OLD, NEW = "an old secret of 32 bytes or more", "a new secret of 32 bytes or more"
KEY, CARD = "order-17", b"4242424242424242"
BOTH = pytest.mark.parametrize("place", ["psycopg", "pysqlite"], indirect=True)
STEPS: list[Any] = [None, ["none", OLD], [OLD, "none"], OLD, [OLD, NEW], [NEW, OLD], NEW]


def secrets(step: Any) -> Any:
    """As they are given; ``none`` stands for none."""
    return [None if each == "none" else each for each in step] if isinstance(step, list) else step


def billing(secret: Any, **options: Any) -> Inbox:
    """The consumer with a secret, or with two of them."""
    return Inbox("billing", secret=secrets(secret), wait_timeout=PATIENT, **options)


def hooked(place: Place, secret: Any, delivery: Delivery, **options: Any) -> Begun:
    """What the hook makes of a delivery to a handler in the inbox's transaction; its own records are lost before each."""
    inbox = billing(secret, **options)
    subscription = Subscription("billing", cache=MemoryCache(), secret=secrets(secret))

    def pay(session: Session, payload: Any) -> int:
        session.execute(EFFECT, {"what": payload.decode()})
        return 7

    return asyncio.run(subscription.execute(delivery, place.handler(inbox, pay), delivery.payload))


@BOTH
def test_no_guess_of_a_key_a_caller_or_a_payload_can_be_tested_by_a_row(place: Place) -> None:
    for inbox in (billing(OLD), billing(NEW), billing(None)):
        place.deliver(inbox, "order-7", caller="alice", payload=b"4242")
    assert len(set(place.markers())) == 3
    rows = place.execute("SELECT fingerprint FROM oncegate_inbox")
    prints = {row.fingerprint if isinstance(row.fingerprint, str) else bytes(row.fingerprint).hex() for row in rows}
    guess = record_id(record_key("any", "order-7", [b"caller", b"alice"]))
    assert sum(record.split(":")[0] == guess.split(":")[0] for _, record in place.markers()) == 1
    assert sum(record.split(":")[1] == guess.split(":")[1] for _, record in place.markers()) == 1
    assert prints > {fingerprint("DELIVERY", b"", b"", b"4242", digests=UNKEYED).hex()}
    assert len(prints) == 3


@BOTH
def test_a_message_is_executed_once_by_neighbouring_steps_of_the_rotation(place: Place) -> None:
    for number, (earlier, later) in enumerate(pairwise(map(billing, STEPS))):
        for one, other in ((earlier, later), (later, earlier)):
            key = f"{number}-{one is earlier}"
            assert place.deliver(one, key, keep=key, payload=b"p").first
            again = [place.deliver(inbox, key, payload=b"p") for inbox in (other, one, other)]
            assert [(each.first, each.result) for each in again] == [(False, key)] * 3
            with pytest.raises(KeyReused):
                place.deliver(other, key, payload=b"q")
    assert len(place.effects()) == 2 * (len(STEPS) - 1)


@BOTH
def test_a_marker_by_the_new_secret_stands_for_the_old_one_s(place: Place) -> None:
    """What was delivered while both were in use is known by the new one alone, with its result."""
    place.deliver(billing(OLD), "a", keep=7, payload=b"p")
    place.deliver(billing([NEW, OLD]), "a", payload=b"p")
    alone = place.deliver(billing(NEW), "a", payload=b"p")
    assert (alone.first, alone.result) == (False, 7)


@BOTH
def test_a_secret_that_is_dropped_at_once_has_a_message_executed_again(place: Place) -> None:
    """What the two are for: with this the tests above fail."""
    assert [place.deliver(billing(secret), "a").first for secret in (OLD, NEW)] == [True, True]


@BOTH
@pytest.mark.parametrize("step", [(OLD, [OLD, NEW]), ([NEW, OLD], OLD), ([OLD, NEW], [NEW, OLD]), ([NEW, OLD], NEW)])
def test_at_the_same_time_too(patient: Place, step: tuple[Any, Any], pool: Pool) -> None:
    one, other = map(billing, step)
    deliver_at_once(patient, one, other, pool)


@BOTH
def test_a_batch_is_marked_by_both_secrets(place: Place) -> None:
    place.deliver(billing(OLD), "b", keep=1)

    def mark(session: Session) -> list[Any]:
        entries = billing([NEW, OLD]).first_many(session, ["a", "b", "a", "c"])
        return [(entry.first, entry.result) for entry in entries]

    assert place.run(mark) == [(True, None), (False, 1), (False, None), (True, None)]
    assert [place.deliver(billing(secret), key).first for key in "abc" for secret in (OLD, NEW)] == [False] * 6


@BOTH
def test_a_record_s_id_that_is_brought_is_the_message_s_by_any_secret(place: Place) -> None:
    record = record_id(record_key("any", "order-7", None))
    steps = (billing(OLD), billing([OLD, NEW]), billing([NEW, OLD]))
    assert [place.deliver(each, None, record=record, payload=b"p").first for each in steps] == [True, False, False]
    assert place.markers() == [("billing", record)]


@BOTH
@pytest.mark.parametrize("order", ["latest", "contiguous"])
def test_a_number_is_the_same_message_s_by_either_secret(place: Place, order: Any) -> None:
    options: dict[str, Any] = {"aggregate": "a", "sequence": 1, "payload": b"p"}
    for aggregate, (one, other) in enumerate(pairwise([OLD, [OLD, NEW], [NEW, OLD], NEW])):
        options["aggregate"] = str(aggregate)
        decided = [place.deliver(billing(each, order=order), "k", **options).decision.value for each in (one, other)]
        assert decided == ["first", "duplicate"]
        with pytest.raises(SequenceForked):
            place.deliver(billing(other, order=order), "another", **options)
    with pytest.raises(SequenceForked):  # what the two are for
        place.deliver(billing(OLD, order=order), "k", **options)


ON_SQLITE = pytest.mark.parametrize("place", ["pysqlite"], indirect=True)


@ON_SQLITE
def test_the_hook_s_message_is_executed_once_by_neighbouring_steps_when_its_own_records_are_gone(place: Place) -> None:
    for number, (earlier, later) in enumerate(pairwise(STEPS)):
        for one, other in ((earlier, later), (later, earlier)):
            delivery = Delivery(f"{number}-{one is earlier}", b"p", caller="alice")
            assert [hooked(place, step, delivery).execution.returned for step in (one, other, one)] == [7, 7, 7]
    assert place.effects() == ["p"] * 2 * (len(STEPS) - 1)


@ON_SQLITE
def test_the_hook_s_ids_are_those_of_the_inbox_and_nothing_is_digested_twice(place: Place) -> None:
    hooked(place, [NEW, OLD], Delivery("order-7", b"p"))
    by_each = [record_id(record_key("any", "order-7", None, given_digests(secret))) for secret in (OLD, NEW)]
    assert place.markers() == [("billing", record) for record in sorted(by_each)]
    assert not place.deliver(billing(NEW), "order-7", payload=b"p").first


@ON_SQLITE
def test_what_was_parked_by_the_old_secret_follows_and_is_known_by_both(place: Place) -> None:
    first, second = (Delivery(f"k-{number}", b"%d" % number, aggregate="a", sequence=number) for number in (1, 2))
    for secret in (OLD, [NEW, OLD]):
        assert isinstance(hooked(place, secret, second, order="contiguous").execution.raised, Parked)
    assert place.effects() == []
    hooked(place, [NEW, OLD], first, order="contiguous")
    again = hooked(place, [NEW, OLD], second, order="contiguous")
    assert (again.execution.returned, again.execution.raised, place.effects()) == (7, None, ["1", "2"])


@ON_SQLITE
@pytest.mark.parametrize("secret", [None, NEW, [NEW, OLD], [OLD, "none"]])
def test_an_inbox_with_other_secrets_than_its_hook_is_refused(place: Place, secret: Any) -> None:
    """A message would have one id by the hook, and another one by `Inbox.first`."""
    inbox = billing(secret)
    handler = place.handler(inbox, lambda session, payload: None)
    subscription = Subscription("billing", cache=MemoryCache(), secret=OLD)
    with pytest.raises(ValueError, match="different secrets"):
        subscription.only(handler)
    with pytest.raises(ValueError, match="different secrets"):
        asyncio.run(subscription.execute(Delivery("k"), handler, b""))
    sessions = async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))
    with pytest.raises(ValueError, match="different secrets") as refusal:
        SubscriptionMiddleware(subscription, inbox=inbox, sessions=sessions)
    assert not any(each in str(refusal.value) for each in (OLD, NEW, "\n"))
    either = Subscription("billing", cache=MemoryCache(), secret=[OLD, NEW])
    either.only(place.handler(billing([NEW, OLD]), lambda session, payload: None))


@ON_SQLITE
def test_operators_find_a_message_by_its_key_under_each_secret_in_use(place: Place) -> None:
    place.deliver(billing(OLD), "order-7")
    place.deliver(billing([NEW, OLD]), "order-8")
    show = ("inbox", "show", "--database", place.url)
    assert invoke(*show, "order-7").returncode == 1
    for key, secret, found in (("order-7", NEW, 1), ("order-7", OLD, 0), ("order-8", NEW, 0), ("order-8", OLD, 0)):
        assert invoke(*show, key, ONCEGATE_SECRET=secret, ONCEGATE_INBOX_DATABASE=place.url).returncode == found
    for key, by in (("order-7", OLD), ("order-8", NEW)):
        document = json.loads(invoke(*show, key, "--json", ONCEGATE_SECRET=json.dumps([NEW, OLD])).stdout)
        assert document["record"] == record_id(record_key("any", key, None, given_digests(by)))
        assert [each["consumer"] for each in document["markers"]] == ["billing"]


def words_in(place: Place, table: str) -> set[str]:
    """Which of the words of the test below are in a table, in clear or as a digest without a secret."""
    rows = place.execute(f"SELECT * FROM {table}")
    found = repr([[value.hex() if isinstance(value, bytes) else value for value in row] for row in rows])
    found += repr([bytes(value) for row in rows for value in row if isinstance(value, bytes)])
    names = {"key": KEY, "caller": "alice", "payload": CARD.decode(), "result": "iban-of-hers"}
    guesses = record_id(record_key("any", KEY, [b"caller", b"alice"])).split(":")
    guesses.append(fingerprint("DELIVERY", b"", b"", CARD).hex())
    assert not [guess for guess in guesses if guess in found]
    return {name for name, word in names.items() if word in found or b64encode(word.encode()).decode() in found}


@ON_SQLITE
def test_which_tables_hold_what_was_said(place: Place) -> None:
    """As docs/security.md has it: what may not, and what has to, in clear."""
    place.deliver(billing(OLD), KEY, caller="alice", payload=CARD)
    ordered = Delivery(KEY, CARD, caller="alice", aggregate="a", sequence=1)
    hooked(place, OLD, ordered, order="contiguous")
    hooked(place, OLD, replace(ordered, key=f"{KEY}-3", sequence=3), order="contiguous")

    def add(session: Session) -> None:
        outbox = Outbox("shop")
        for table in outbox.tables(MetaData()):
            table.create(session.connection())
        outbox.add(session, "topic", {"card": CARD.decode()}, key=KEY)

    place.run(add)
    assert words_in(place, "oncegate_inbox") == words_in(place, "oncegate_order") == set()
    assert words_in(place, "oncegate_parked") == {"payload"}
    assert words_in(place, "oncegate_outbox") == {"key", "payload"}
    place.deliver(billing(OLD), "another", keep="iban-of-hers")
    assert words_in(place, "oncegate_inbox") == {"result"}
