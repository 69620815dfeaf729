"""A header that is added in one place is missing in no other: each place takes it from where it is declared."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from pydantic import ValidationError

from oncegate import EXPOSED_HEADERS, IdempotencySettings
from oncegate.app.operators.records import resolving
from oncegate.middleware.rules.headers.added_headers import ADDED_HEADERS, AddedHeader, field
from oncegate.middleware.rules.policy import OF_THE_MOMENT, compile_policy
from tests.app.described import DESCRIPTION

CONTRACT = (Path(__file__).parent.parent / "docs" / "contract.md").read_text("utf-8")
POLICY = compile_policy(IdempotencySettings())


@pytest.mark.parametrize("header", ADDED_HEADERS, ids=lambda header: header.name)
def test_an_added_header_is_known_wherever_it_matters(header: AddedHeader) -> None:
    name = field(header.name)
    assert (header.name in EXPOSED_HEADERS) is header.is_exposed
    assert header.name.replace("-", "") in DESCRIPTION["components"]["headers"]
    assert f"`{header.name}" in CONTRACT
    assert (name in POLICY.own_headers) is header.is_ours, "an upstream's own is dropped"
    assert (name in POLICY.unstored) is (header.is_ours or name in OF_THE_MOMENT)
    assert (name.decode() in resolving.NOT_KEPT) is header.is_on_replays
    refusal = pytest.raises(ValidationError, match="can't carry the key")
    with nullcontext() if header.name == "Idempotency-Key" else refusal:
        IdempotencySettings(header=header.name)


def test_a_header_that_is_not_declared_can_not_be_added() -> None:
    with pytest.raises(KeyError):
        field("X-Undeclared")
