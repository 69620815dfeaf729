"""``oncegate commands``: what an operator sees of commands, and how those that were given up come back.

Rules of docs/contract.md: R8.19, R8.24, R8.25, R8.26, R8.27, R10.1, R11.18, R11.22, R11.23.
"""

import json
from typing import Any

import pytest

from testing.command_line import OPERATOR, invoke, run
from testing.waiting import wait_until
from tests.worker.shop import Shop, at_gate

SECRET = "secret-of-alice"
LETTERS = "work.MAX_DEAD_LETTERS"


def oncegate(shop: Shop, *arguments: str, code: int = 0) -> str:
    """What it prints, on both outputs."""
    done = shop.operate(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def as_json(shop: Shop, *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(shop.operate(*arguments, "--json").stdout)
    return document


def die(shop: Shop, *keys: str) -> None:
    """Have commands given up."""
    for key in keys:
        shop.submit(key, {"do": "reject", "name": SECRET}, target=f"/bookings?token={SECRET}", correlation="trace-1")
    shop.work()


def test_dead_letters_are_listed_with_what_killed_them(shop: Shop) -> None:
    die(shop, "k1", "k2")
    shown = oncegate(shop, "list")
    assert shown.count("rejected") == 2
    assert "NotRetryable: no such account" in shown
    assert "0 not read yet, 0 pending, 2 dead" in shown
    document = as_json(shop, "list")
    assert [letter["command"] for letter in document["dead_letters"]] == [
        shop.command("k1").command,
        shop.command("k2").command,
    ]
    assert document["counts"] == {"unread": 0, "pending": 0, "dead": 2, "trimmed": 0}
    first = as_json(shop, "list", "--limit", "1")
    assert len(first["dead_letters"]) == 1
    rest = as_json(shop, "list", "--after", first["after"])
    assert [letter["command"] for letter in rest["dead_letters"]] == [shop.command("k2").command]


def test_the_retry_that_is_shown_is_pasted_with_its_stream(shop: Shop) -> None:
    die(shop, "k1")
    shown = oncegate(shop, "show", shop.command("k1").command, "--consumer", "commands")
    (command,) = [line.partition("  oncegate ")[2] for line in shown.splitlines() if line.startswith("again?")]
    assert f"--namespace {shop.namespace} --consumer commands" in command
    done = invoke(*command.split(), ONCEGATE_CACHE_TIMEOUT="10")
    assert (done.returncode, "1 to be processed again." in done.stdout) == (0, True), done.stderr


def test_a_stream_that_is_not_there_is_told(shop: Shop) -> None:
    shop.submit("k")
    assert "No dead letters." in oncegate(shop, "list")
    for pending in ([], ["--pending"]):
        shown = oncegate(shop, "list", "--stream", "comands", *pending, code=1)
        assert f"there is no stream comands in namespace {shop.namespace}" in shown


def test_a_dead_letter_can_be_discarded(shop: Shop) -> None:
    die(shop, "k1", "k2", "k3")
    first = as_json(shop, "list")["dead_letters"][0]["id"]
    printed = oncegate(shop, "discard", first, "--reason", "of nobody")
    assert f"{first} is gone" in printed
    assert f"oncegate.audit: 1 dead letters of {first}: discarded by {OPERATOR}: of nobody\n" in printed
    document = as_json(shop, "discard", shop.command("k2").command)
    assert [each["command"] for each in document["discarded"]] == [shop.command("k2").command]
    assert [letter["key"] for letter in shop.letters()] == ["k3"]
    assert "no dead letter of" in oncegate(shop, "discard", first, code=1)
    assert "give ids, or --error GROUP" in oncegate(shop, "discard", code=2)
    assert shop.state("k1") == "failed"


def test_of_too_many_dead_letters_the_oldest_go_and_it_is_told(shop: Shop) -> None:
    """With the letter that makes it necessary: at no moment are there more."""
    for number in range(5):
        shop.submit(f"k{number}", {"do": "reject"})
    worker = shop.work(constants={LETTERS: 3}, concurrency=1)
    assert [letter["key"] for letter in shop.letters()] == ["k2", "k3", "k4"]
    assert worker.text().count("1 dead letters of stream commands were too many or too old, and are gone") == 2
    assert as_json(shop, "list")["counts"] == {"unread": 0, "pending": 0, "dead": 3, "trimmed": 2}
    assert "3 dead; 2 more were dead, and are gone: too many" in oncegate(shop, "list")
    assert {shop.state(f"k{number}") for number in range(5)} == {"failed"}  # their commands' records stay


def test_dead_letters_that_are_too_old_go_although_nothing_dies_any_more(shop: Shop) -> None:
    die(shop, "old", "older")
    shop.redis.set(f"{shop.dead}:marker", "")  # nothing else goes
    shop.start(dead_letter_ttl=0.001, constants={"commands.worker.SWEEP_SECONDS": 0.05}).logs(
        "2 dead letters of stream commands"
    )
    assert shop.letters() == []
    assert as_json(shop, "list")["counts"]["trimmed"] == 2
    assert shop.redis.exists(f"{shop.dead}:marker")


def test_a_limit_that_was_lowered_takes_letters_out_in_pieces(shop: Shop) -> None:
    pipe = shop.redis.pipeline(transaction=False)
    for number in range(2500):
        pipe.xadd(shop.dead, {"key": f"k{number}"})
    pipe.execute()
    worker = shop.start(constants={LETTERS: 10, "commands.worker.SWEEP_SECONDS": 0.05})
    worker.logs("490 dead letters of stream commands")
    assert worker.text().count("1000 dead letters of stream commands") == 2
    assert [letter["key"] for letter in shop.letters()] == [f"k{number}" for number in range(2490, 2500)]


def test_of_several_consumers_limits_the_smallest_counts(shop: Shop) -> None:
    for group in ("commands", "another"):
        shop.redis.xgroup_create(shop.stream, group, id="0", mkstream=True)
    for number in range(3):
        shop.submit(f"k{number}", {"do": "reject"})
    shop.work(constants={LETTERS: 10})
    assert len(shop.letters()) == 3
    shop.start(consumer="another", constants={LETTERS: 2}, concurrency=1)
    shop.done("another")
    assert [letter["dead.consumer"] for letter in shop.letters()] == ["another", "another"]


def test_what_is_retried_is_not_lost_to_trimming(shop: Shop) -> None:
    """It is in the stream by then, and nobody trims what a group needs; should it die again, its letter is the newest."""
    shop.gate.touch()
    shop.submit("k", at_gate(shop, then="reject"))
    shop.work(constants={LETTERS: 1})
    (letter,) = as_json(shop, "list")["dead_letters"]
    shop.gate.unlink()
    oncegate(shop, "retry", letter["id"])
    shop.becomes("k", "in-flight")
    for number in range(5):
        shop.submit(f"other-{number}", {"do": "reject"})
    wait_until(lambda: as_json(shop, "list")["counts"]["trimmed"] == 4, "others die meanwhile")
    shop.gate.touch()
    shop.done()
    assert [(each["key"], each["dead.attempts"]) for each in shop.letters()] == [("k", "2")]


def test_without_dead_letters_there_are_none(shop: Shop) -> None:
    shop.redis.xgroup_create(shop.stream, "commands", id="0", mkstream=True)
    assert "No dead letters." in oncegate(shop, "list")
    assert "Nothing is pending." in oncegate(shop, "list", "--pending")
    assert oncegate(shop, "retry", "--all").startswith("0 to be processed again")


def test_what_is_pending_is_listed_with_its_state_and_who_holds_it(shop: Shop) -> None:
    shop.submit("k", {"do": "fail"})
    shop.start(retry_base=3600, retry_cap=3600)
    shop.becomes("k", "failed")
    (held,) = as_json(shop, "list", "--pending")["pending"]
    assert (held["command"], held["state"], held["attempt"]) == (shop.command("k").command, "failed", 1)
    assert "failed" in oncegate(shop, "list", "--pending")
    shown = as_json(shop, "show", held["entry"])
    assert shown["execution"]["error"] == {"type": "ValueError", "message": "could not book for None"}


def test_a_command_is_shown_by_any_of_its_ids(shop: Shop) -> None:
    die(shop, "k1")
    (letter,) = as_json(shop, "list")["dead_letters"]
    by_command = as_json(shop, "show", letter["command"])
    assert by_command["dead_letters"] == [letter]
    assert by_command["execution"]["state"] == "failed"
    assert by_command["execution"]["error"]["dead"] is True
    for identifier in (letter["id"], letter["entry"]):
        shown = as_json(shop, "show", identifier)
        assert shown["dead_letters"] == by_command["dead_letters"]
        for each in (shown, by_command):
            for record in ("execution", "submission"):
                each[record].pop("expires_in", None)  # it passes
        assert shown == by_command
    text = oncegate(shop, "show", letter["command"])
    assert "rejected, after 1 attempts by commands" in text
    assert f"oncegate commands retry {letter['id']}" in text


def test_keys_payloads_and_queries_are_shown_on_demand_alone(shop: Shop) -> None:
    die(shop, "key-of-alice")
    (letter,) = as_json(shop, "list")["dead_letters"]
    for shown in (
        *(oncegate(shop, "list"), oncegate(shop, "list", "--json"), oncegate(shop, "show", letter["id"])),
        oncegate(shop, "show", letter["id"], "--json"),
    ):
        assert SECRET not in shown
        assert "key-of-alice" not in shown
    looked = oncegate(shop, "show", letter["id"], "--body")
    assert SECRET in looked
    line = f"dead letter {letter['id']} of command {letter['command']}: its key and payload shown by {OPERATOR}"
    assert f"oncegate.audit: {line}\n" in looked
    (whole,) = as_json(shop, "show", letter["id"], "--body")["dead_letters"]
    assert (whole["key"], json.loads(whole["body"])["name"]) == ("key-of-alice", SECRET)


ODD_INSTANTS = [b"999999999999999", b"253402300800000", b"9" * 30, b"-1", b"0", b"", b"1e9", b"soon", b"\xff", b" 1"]
"""What may stand where an entry has Unix ms: the first ones are numbers, of no year that can be written."""


def test_odd_instants_of_entries_are_told_as_not_known(shop: Shop) -> None:
    """Waiting, read by a worker, or given up: an entry's instants are for people, and anybody may have written them."""
    fields = shop.command("k").fields()
    waiting = [
        shop.redis.xadd(shop.stream, fields | {b"accepted_at": instant}, id=f"{number}-0")  # type: ignore[arg-type]  # a dict of bytes is one of those
        for number, instant in enumerate(ODD_INSTANTS, 1)
    ]
    shop.redis.xgroup_create(shop.stream, "commands", id="0")
    shop.redis.xreadgroup("commands", "somebody", {shop.stream: ">"})
    dead = {b"dead.consumer": b"commands", b"dead.reason": b"exhausted", b"dead.entry": b"1-1"}
    for number, instant in enumerate(ODD_INSTANTS):
        letter = fields | dead | {b"accepted_at": instant, b"dead.at": instant}
        shop.redis.xadd(shop.dead, letter, id=f"99-{number}")  # type: ignore[arg-type]  # as above; no id of those that wait
    for arguments in (["list"], ["list", "--pending"], ["show", shop.command("k").command], ["show", "1-1"]):
        oncegate(shop, *arguments)
    listed = [*as_json(shop, "list", "--pending")["pending"], *as_json(shop, "list")["dead_letters"]]
    assert len(listed) == 2 * len(ODD_INSTANTS)
    assert {each["accepted_at"] for each in listed} == {None}
    assert {each.get("died_at") for each in listed} == {None}
    for entry in waiting:
        assert isinstance(entry, bytes)
        assert "no such command" in oncegate(shop, "show", entry.decode(), code=1)  # which has no record


def test_a_dead_letter_that_is_retried_gets_as_many_attempts_as_a_new_command(shop: Shop) -> None:
    shop.submit("k", {"do": "fail"})
    worker = shop.work(max_attempts=2)
    (letter,) = as_json(shop, "list")["dead_letters"]
    printed = oncegate(shop, "retry", letter["command"], "--reason", "mended")
    line = f"oncegate.audit: dead letter {letter['id']} of command {letter['command']}: retried by {OPERATOR}: mended\n"
    assert line in printed
    shop.done()
    (again,) = as_json(shop, "list")["dead_letters"]
    assert (letter["attempts"], again["attempts"]) == (2, 4)
    assert worker.text().count("failed: ValueError") == 4


def test_a_dead_letter_that_is_retried_succeeds_when_its_cause_is_mended(shop: Shop) -> None:
    shop.submit("k", {"do": "nothing", "gate": str(shop.gate)}, correlation="trace-1")
    shop.submit("poison", {"do": "reject"})
    worker = shop.start("pay")  # which does not take such payloads
    shop.done()
    assert worker.stop() == 0
    shop.gate.touch()
    shop.start("book")
    shown = oncegate(shop, "retry", "--all")
    assert "2 to be processed again." in shown
    shop.done()
    assert (shop.state("k"), shop.effects("k")) == ("succeeded", 1)
    (letter,) = as_json(shop, "list")["dead_letters"]
    assert letter["command"] == shop.command("poison").command


def test_retry_is_for_the_consumer_that_gave_up_alone(shop: Shop) -> None:
    """Another one has processed it, and its record may be gone by now: the command must not be executed there again."""
    shop.submit("k", {"do": "reject"})
    for group in ("commands", "another"):
        shop.redis.xgroup_create(shop.stream, group, id="0")
    shop.start()
    shop.work("pay", consumer="another", max_attempts=1)
    shop.done("another")
    letters = {letter["consumer"]: letter for letter in as_json(shop, "list")["dead_letters"]}
    oncegate(shop, "retry", letters["another"]["id"])
    shop.done("another")
    shop.done()
    left = as_json(shop, "list")["dead_letters"]
    assert sorted((letter["consumer"], letter["attempts"]) for letter in left) == [("another", 2), ("commands", 1)]


def test_what_nobody_would_read_is_not_taken_from_its_letter(shop: Shop) -> None:
    """The consumer has another name by now: its workers would take the entry for another's, and out of the stream."""
    shop.submit("k", {"do": "reject"})
    worker = shop.work()
    worker.stop()
    shop.redis.xgroup_create(shop.stream, "renamed", id="0")
    shop.redis.xgroup_destroy(shop.stream, "commands")
    (letter,) = as_json(shop, "list")["dead_letters"]
    for identifier in (letter["id"], "--all"):
        assert f"start its worker first): {letter['id']}" in oncegate(shop, "retry", identifier, code=1)
    shop.start().logs("the group commands was made")
    oncegate(shop, "retry", letter["id"])
    shop.done()
    assert [again["attempts"] for again in as_json(shop, "list")["dead_letters"]] == [2]


def test_what_is_retried_twice_comes_back_once(shop: Shop) -> None:
    die(shop, "k")
    shop.start().reads()
    (letter,) = as_json(shop, "list")["dead_letters"]
    oncegate(shop, "retry", letter["id"])
    assert "no dead letter of" in oncegate(shop, "retry", letter["id"], code=1)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "nonsense"], 2, "an id is that of a command"),
        (["show", "1-1"], 1, "no such command"),
        (["retry"], 2, "give ids, or --all"),
        (["retry", "1-1", "--all"], 2, "give ids, or --all"),
        (["retry", "1-1"], 1, "no dead letter of 1-1"),
        (["list", "--after", "x"], 2, "--after takes"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_line(shop: Shop, arguments: list[str], code: int, message: str) -> None:
    done = shop.operate(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert message in done.stderr


def test_without_a_redis_there_is_nothing_to_look_at() -> None:
    for arguments, code, message in (
        ([], 2, "cache: commands are in the Redis"),
        (["--cache", "redis://127.0.0.1:1/0"], 1, "Redis at 127.0.0.1:1 can't be used"),
        (["--cache", "redis://127.0.0.1:1/0", "--stream", "no/name"], 2, "worker.stream (command line)"),
    ):
        done = invoke("commands", "list", *arguments)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
        assert message in done.stderr


def test_the_installed_command_does_it_too(shop: Shop) -> None:
    assert "what was given up, and why?" in run("commands", "--help").stdout
    shop.submit("k")
    assert "No dead letters." in run("commands", "list", "--cache", shop.url, "--namespace", shop.namespace).stdout
