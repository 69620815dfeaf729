"""`derive_key`: the same key for the same parts for ever, as anybody can compute it from its description."""

import uuid
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate import derive_key
from oncegate.middleware.rules.keys.key import parse_key

KNOWN = {
    ("evt_1", "billing", "charge"): "27a1b0bb-bdb0-86b2-b953-79b0b36a5c36",
    ("evt_1", "billing", "refund"): "01b05aa4-723e-8bd8-9221-663f8568d83b",
    ("order-42/placed", "saga", "reserve", "2"): "7b50cdd4-dc43-818c-adad-65ab4a26907a",
    ("é", "ü"): "545317f8-9bea-88e3-b33d-4a9320a96079",
}
"""Sent to somebody already: never to change."""

PARTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=4)


@pytest.mark.parametrize(("parts", "key"), KNOWN.items())
def test_known_keys_stay_what_they_are(parts: tuple[str, ...], key: str) -> None:
    assert derive_key(*parts) == key


@given(PARTS)
def test_it_is_what_its_description_says(parts: list[str]) -> None:
    packed = b"oncegate.derive_key.1" + b"".join(
        str(len(part.encode())).encode() + b":" + part.encode() for part in parts
    )
    number = int.from_bytes(sha256(packed).digest()[:16], "big")
    number = number & ~(0xF << 76) | 8 << 76
    number = number & ~(3 << 62) | 2 << 62
    assert derive_key(*parts) == str(uuid.UUID(int=number))


@given(PARTS)
def test_it_is_a_bare_key_and_a_uuid(parts: list[str]) -> None:
    key = derive_key(*parts)
    assert parse_key(key.encode()) == key
    assert (uuid.UUID(key).version, uuid.UUID(key).variant) == (8, uuid.RFC_4122)


@given(PARTS, PARTS)
def test_other_parts_give_another_key(one: list[str], other: list[str]) -> None:
    assert (derive_key(*one) == derive_key(*other)) == (one == other)


def test_no_part_can_be_moved_into_its_neighbour() -> None:
    assert len({derive_key("a", "bc"), derive_key("ab", "c"), derive_key("a", "b", "c"), derive_key("a1:b", "c")}) == 4


@pytest.mark.parametrize("parts", [("evt_1",), ("", "billing"), ("evt_1", "billing", "")])
def test_a_missing_part_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="derive_key"):
        derive_key(*parts)


def test_a_part_that_is_no_string_is_refused() -> None:
    with pytest.raises(TypeError, match="not int"):
        derive_key(1, "billing")  # type: ignore[arg-type]  # what a caller without a type checker does
