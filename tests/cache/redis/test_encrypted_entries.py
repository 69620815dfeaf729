"""Commands in streams and dead letters, encrypted. Rule of docs/contract.md: R6.23."""

import base64
import os
from dataclasses import replace

import pytest

from oncegate.cache.encryption import Encryption
from oncegate.cache.redis.streams.encrypted import decrypted, encrypted, encrypted_death, shown
from oncegate.cache.redis.streams.letter import Death
from oncegate.cache.redis.streams.stream import Command, Fields, NotACommand

COMMAND = Command(
    command="k" * 20 + ":" + "s" * 20,
    key="a key \u20ac",
    fingerprint=bytes(16),
    method="POST",
    target="/cards/\xe9?number=4242",
    route="/cards/*",
    body=b"4242 \xff",
    content_type="text/plain",
    correlation="of-4242",
    traceparent="00-4242",
    accepted_at_ms=7,
    attempts_before=2,
    headers=(("x-card", "4242 \xe9"),),
    aggregate="account-4242 \u20ac",
    sequence=3,
)
KEYS = [f"{name}:{base64.b64encode(os.urandom(32)).decode()}" for name in ("old", "new")]
ENCRYPTION = Encryption(KEYS[1:])
DEATH = Death("c", "exhausted", 2, "ValueError", "no card 4242", "1-0", "host/1", 7).fields()


def entry() -> Fields:
    return encrypted(COMMAND.fields(), ENCRYPTION)


def test_what_a_command_says_is_not_in_its_entry_and_comes_back() -> None:
    written = entry()
    assert b"4242" not in b"".join(part for pair in written.items() for part in pair)
    assert b"a key" not in b"".join(written.values())
    assert Command.read(decrypted(written, ENCRYPTION)) == COMMAND
    assert Command.read(decrypted(written, Encryption(["none", *KEYS]))) == COMMAND
    assert (written[b"command"], written[b"route"]) == (COMMAND.command.encode(), b"/cards/*")


def test_an_error_of_a_dead_letter_is_encrypted_with_it() -> None:
    letter = entry() | encrypted_death(DEATH, COMMAND.command, ENCRYPTION)
    assert b"4242" not in b"".join(letter.values())
    assert decrypted(letter, ENCRYPTION) == COMMAND.fields() | DEATH
    assert Death.read(decrypted(letter, ENCRYPTION)).fields() == DEATH
    people = shown(letter, None)
    assert (people[b"command"], people[b"dead.error_type"]) == (COMMAND.command.encode(), b"ValueError")
    assert {b"body", b"key", b"dead.error"}.isdisjoint(people)


@pytest.mark.parametrize("keys", [[], KEYS[:1]], ids=["none", "another"])
def test_without_its_key_it_is_no_command_that_can_be_read(keys: list[str]) -> None:
    with pytest.raises(NotACommand, match="encrypted"):
        Command.read(decrypted(entry(), Encryption(keys) if keys else None))


def test_an_entry_can_t_be_read_as_another_commands() -> None:
    other = replace(COMMAND, command="o" * 20 + ":" + "s" * 20)
    moved = encrypted(other.fields(), ENCRYPTION)
    for name in (b"encrypted", b"body"):
        with pytest.raises(NotACommand):
            decrypted(moved | {name: entry()[name]}, ENCRYPTION)
    with pytest.raises(NotACommand):
        decrypted(entry() | {b"body": entry()[b"encrypted"]}, ENCRYPTION)


def test_in_clear_it_stays_as_it_was_until_the_first_key_encrypts() -> None:
    for encryption in (None, Encryption(["none", KEYS[0]])):
        assert encrypted(COMMAND.fields(), encryption) == COMMAND.fields()
        assert encrypted_death(DEATH, COMMAND.command, encryption) == DEATH
        assert Command.read(decrypted(COMMAND.fields(), encryption)) == COMMAND
