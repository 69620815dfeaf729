"""A command's aggregate and number, from the entry to the handler and what it stands on.

Rules of docs/contract.md: R8.29.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from oncegate.cache.redis.streams.stream import Command, NotACommand
from tests.worker.shop import Shop, at_gate


def result(shop: Shop, key: str) -> Any:
    return json.loads(shop.response(key).body or b"null")


def test_a_handler_and_its_inbox_know_aggregate_and_number_and_a_letter_that_is_driven_again_keeps_them(
    shop: Shop,
) -> None:
    shop.submit("plain")
    shop.submit("numbered", {"do": "reject", "gate": str(shop.gate)}, aggregate="caf\xe9 ", sequence=2**63 - 1)
    shop.work("return_number")
    assert result(shop, "plain") == ["", None, "", None]
    assert shop.state("numbered") == "failed"
    assert_operators_see(shop, "caf\xe9 ", 2**63 - 1)
    shop.gate.touch()
    assert shop.operate("retry", "--all").returncode == 0
    shop.becomes("numbered", "succeeded")
    assert result(shop, "numbered") == ["caf\xe9 ", 2**63 - 1] * 2
    shop.done()
    accepted = shop.submission("numbered").response
    assert accepted
    assert json.loads(accepted.body or b"")["sequence"] == 2**63 - 1, "a submission that is written anew has it, too"


def commands(shop: Shop, *arguments: str) -> str:
    done = shop.operate(*arguments, COLUMNS="250")
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_operators_see(shop: Shop, aggregate: str, sequence: int) -> None:
    """Of a dead letter, in the list and alone, and of the command that it was."""
    (letter,) = json.loads(commands(shop, "list", "--json"))["dead_letters"]
    document = json.loads(commands(shop, "show", letter["command"], "--json"))
    for about in (letter, document, *document["dead_letters"]):
        assert (about["aggregate"], about["sequence"]) == (aggregate, sequence)
    assert f"{aggregate} #{sequence}" in commands(shop, "list")
    assert commands(shop, "show", letter["command"]).count(f"{aggregate} #{sequence}") == 2


def test_operators_see_the_numbers_of_commands_that_wait(shop: Shop) -> None:
    shop.submit("k", at_gate(shop), aggregate="7", sequence=3)
    shop.start()
    shop.becomes("k", "in-flight")
    (held,) = json.loads(commands(shop, "list", "--pending", "--json"))["pending"]
    assert (held["aggregate"], held["sequence"]) == ("7", 3)
    assert "7 #3" in commands(shop, "list", "--pending")
    shop.gate.touch()
    shop.done()
    assert "aggregate" not in commands(shop, "list", "--pending")


@pytest.mark.parametrize("digits", [b"0", b"-1", b"9223372036854775808", b"1_0", b" 1", b"x"])
def test_an_entry_whose_number_is_none_is_no_command(digits: bytes) -> None:
    command = Command("a", "k", bytes(16), "POST", "/orders/7", "/orders/*", b"", aggregate="7", sequence=1)
    assert Command.read(command.fields()) == command
    assert Command.read(replace(command, aggregate="", sequence=None).fields()).sequence is None
    with pytest.raises(NotACommand):
        Command.read(command.fields() | {b"sequence": digits})
