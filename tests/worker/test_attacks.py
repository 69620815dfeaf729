"""What else may be in a stream, or happen to it: no entry is lost, none is in the way of the others, and no worker ends."""

import secrets
from typing import Any

import pytest

from testing.waiting import wait_until
from tests.worker.shop import LASTING, Shop, at_gate, waiting

NO_COMMANDS: dict[str, dict[bytes, bytes]] = {
    "of another program": {b"hello": b"world"},
    "of a later version": {b"v": b"2", b"command": b"x"},
    "without a body": {b"v": b"1", b"command": b"a:b", b"key": b"k"},
    "with bytes for text": {b"v": b"1", b"command": b"\xff\xfe", b"key": b"\xff"},
    "with fields of a death": {b"dead.reason": b"made up", b"dead.attempts": b"-1", b"dead.at": b"soon"},
    "with empty names": {b"": b"", b"\0": b"\r\n"},
    "with thousands of fields": {b"field-%d" % number: b"x" for number in range(5000)},
}


@pytest.mark.parametrize("kind", NO_COMMANDS)
def test_an_entry_that_is_no_command_becomes_a_dead_letter(shop: Shop, kind: str) -> None:
    entry: Any = shop.redis.xadd(shop.stream, NO_COMMANDS[kind])  # type: ignore[arg-type]  # a dict of bytes is one of those
    shop.submit("next")
    shop.work()
    (letter,) = shop.letters()
    assert (letter["dead.reason"], letter["dead.entry"]) == ("undecodable", entry.decode())
    for name, value in list(NO_COMMANDS[kind].items())[:100]:
        assert letter[name.decode()] == value.decode("latin-1") or name.startswith(b"dead.")
    assert shop.effects("next") == 1


@pytest.mark.parametrize(
    "changes",
    [{b"command": b"nonsense"}, {b"command": b"a" * 1_000_000}, {b"key": b"k" * 100_000, b"command": b"{}:{}"}],
    ids=["no id", "a long id", "a long key"],
)
def test_a_command_without_a_record_s_id_becomes_a_dead_letter(shop: Shop, changes: dict[bytes, bytes]) -> None:
    fields: Any = shop.command("k").fields() | changes
    shop.redis.xadd(shop.stream, fields)
    shop.submit("next")
    worker = shop.work()
    (letter,) = shop.letters()
    assert letter["dead.reason"] == "rejected"
    assert shop.effects("next") == 1
    assert len(worker.text()) < 100_000


@pytest.mark.parametrize(
    "headers",
    [b"x", b"1", b'[["a","b","c"]]', b'[["a",1]]', b'[["a","b\\r\\nx: y"]]', b'[["a","\xe2\x82\xac"]]'],
    ids=ascii,
)
def test_headers_that_are_none_become_a_dead_letter(shop: Shop, headers: bytes) -> None:
    fields: Any = shop.command("k").fields() | {b"headers": headers}
    shop.redis.xadd(shop.stream, fields)
    shop.submit("next")
    shop.work()
    assert [letter["dead.reason"] for letter in shop.letters()] == ["undecodable"]
    assert shop.effects("next") == 1


def test_a_huge_payload_is_a_command_like_any_other(shop: Shop) -> None:
    shop.submit("k", {"padding": "x" * 20_000_000})
    shop.submit("next")
    shop.work()
    assert (shop.effects("k"), shop.effects("next")) == (1, 1)


def test_a_fingerprint_of_zeros_and_a_method_of_another_world_are_no_fault(shop: Shop) -> None:
    odd = {b"method": b"\xe4\n", b"fingerprint": b"0" * 32, b"accepted_at": b"9" * 30}
    fields: Any = shop.command("k").fields() | odd
    shop.redis.xadd(shop.stream, fields)
    shop.work()
    assert shop.effects("k") == 1


def test_workers_of_different_settings_share_a_stream(shop: Shop) -> None:
    for number in range(30):
        shop.submit(f"good-{number}")
        shop.submit(f"bad-{number}", {"do": "fail"})
    shop.start(max_attempts=3, concurrency=1, settings={"idempotency__lease": 12})
    shop.work(max_attempts=5, concurrency=20, retry_base=0.01, settings=LASTING | {"idempotency__ttl": 600})
    assert all(shop.effects(f"good-{number}") == 1 for number in range(30))
    letters = shop.letters()
    assert sorted(letter["key"] for letter in letters) == sorted(f"bad-{number}" for number in range(30))
    assert {letter["dead.attempts"] for letter in letters} <= {"3", "4", "5"}


def test_an_entry_that_somebody_deletes_while_it_waits_is_forgotten(shop: Shop) -> None:
    entry = shop.submit("poison", {"do": "fail"})
    worker = shop.start(retry_base=0.2)
    shop.becomes("poison", "failed")
    shop.redis.xdel(shop.stream, entry)
    shop.submit("next")
    shop.done()
    assert shop.effects("next") == 1
    assert not shop.letters()
    assert not worker.ended()


def test_a_group_that_is_destroyed_at_work_repeats_nothing(shop: Shop) -> None:
    shop.redis.xgroup_create(shop.stream, "another", id="0", mkstream=True)  # it reads nothing: all entries stay
    shop.submit("done")
    shop.submit("running", at_gate(shop))
    shop.start(settings=LASTING)
    wait_until(lambda: shop.effects("done") and waiting(shop), "one is done, one is executed")
    shop.redis.xgroup_destroy(shop.stream, "commands")
    wait_until(lambda: len(shop.redis.xinfo_groups(shop.stream)) == 2, "the group is made anew")
    shop.gate.touch()
    shop.done()
    assert (shop.effects("done"), shop.effects("running")) == (1, 1)


def test_a_dead_letter_that_can_not_be_written_leaves_its_entry(shop: Shop) -> None:
    shop.redis.set(shop.dead, "somebody's own")
    shop.submit("k", {"do": "reject"})
    worker = shop.start()
    worker.logs("can't be acknowledged")
    assert "the stream can't be read" not in worker.text()
    assert shop.pending() == 1
    shop.redis.delete(shop.dead)
    shop.done()
    (letter,) = shop.letters()
    assert (letter["key"], letter["dead.error"]) == ("k", "no such account")


def test_a_record_that_can_not_be_read_is_no_miss(shop: Shop) -> None:
    shop.redis.set(shop.place("k"), secrets.token_bytes(50), px=60_000)
    shop.submit("k")
    shop.submit("next")
    shop.work()
    (letter,) = shop.letters()
    assert (letter["dead.reason"], shop.effects("k"), shop.effects("next")) == ("record-unreadable", 0, 1)


def test_two_copies_that_fail_do_not_get_twice_the_attempts(shop: Shop) -> None:
    for _ in range(2):
        shop.submit("k", {"do": "fail"})
    worker = shop.work(max_attempts=3)
    assert worker.text().count("failed: ValueError") == 3
    assert [letter["dead.attempts"] for letter in shop.letters()] == ["3"], "and one letter"
    assert shop.record("k").attempt == 3
