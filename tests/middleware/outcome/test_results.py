"""What makes two commands the same, and what of a result and of an exception is kept: without any store."""

import enum
import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr, field_serializer

from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.results import JsonCodec, command_form, error_form, read_error

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Card(BaseModel):
    number: SecretStr
    note: str = Field(default="", exclude=True)
    rate: float = 0.0

    @field_serializer("rate")
    def _rounded(self, rate: float) -> int:
        return round(rate)


@dataclass
class Hidden:
    _amount: int
    tags: set[str] = field(default_factory=set)


class Color(enum.Enum):
    RED = "red"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


@given(json_values, json_values)
def test_json_values_are_the_same_exactly_where_they_are_equal(one: Any, other: Any) -> None:
    assert command_form(one) == command_form(one)
    if command_form(one) == command_form(other):
        assert one == other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Card(number=SecretStr("4111")), Card(number=SecretStr("4222"))),
        (Card(number=SecretStr("4"), note="a"), Card(number=SecretStr("4"), note="b")),
        (Card(number=SecretStr("4"), rate=1.1), Card(number=SecretStr("4"), rate=1.2)),
        ({"card": [Card(number=SecretStr("4111"))]}, {"card": [Card(number=SecretStr("4222"))]}),
        (Hidden(1), Hidden(2)),
        (Open.model_validate({"a": 1}), Open.model_validate({"a": 2})),
        (2**70, 2**70 + 1),
        (1, 1.0),
        (True, 1),
        (None, "null"),
        (Decimal("1.10"), Decimal("1.11")),
        (b"\x00", b"\x01"),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        ("\udc80", "\udc81"),
        ([1, [2]], [[1], 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_commands_that_differ_in_any_field_differ(one: Any, other: Any) -> None:
    assert command_form(one) != command_form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Hidden(1, {"x", "y"}), {"tags": ["x", "y"], "_amount": 1}),
        (RootModel[list[int]]([1]), [1]),
        (deque([1, 2]), (1, 2)),
        (Color.RED, "red"),
        ({1: "a"}, {"1": "a"}),
        (UUID(int=0), "00000000-0000-0000-0000-000000000000"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_commands_with_one_json_form_are_the_same(one: Any, other: Any) -> None:
    assert command_form(one) == command_form(other)


def test_sets_have_one_form_in_every_process() -> None:
    """The order of a set of strings changes with each process's hash seed."""
    code = "from oncegate.middleware.outcome.results import command_form as f; print(f({'a', 'b', 'c', 'd', 'e'}).decode())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        )
        assert done.stdout == '["a","b","c","d","e"]\n', done.stderr


def nested() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "command",
    [object(), float("nan"), {"a": [float("inf")]}, iter([1]), (n for n in "ab"), {1: "a", "1": "b"}, nested(), Card],
    ids=["object", "nan", "inf", "iterator", "generator", "names", "nested", "class"],
)
def test_what_has_no_json_form_is_refused(command: Any) -> None:
    with pytest.raises(TypeError):
        command_form(command)


def test_a_refused_iterator_is_not_read() -> None:
    numbers = iter([1, 2])
    with pytest.raises(TypeError):
        command_form({"numbers": numbers})
    assert list(numbers) == [1, 2]


def test_a_command_that_holds_itself_is_refused() -> None:
    command: list[Any] = []
    command.append(command)
    with pytest.raises(TypeError, match="holds itself"):
        command_form(command)


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 2**70, float("inf"), "é", [1, {"a": None}], True])
def test_json_results_come_back(value: Any) -> None:
    codec = JsonCodec(Any)
    assert codec.load(codec.dump(value)) == value


def test_typed_results_come_back_as_their_type() -> None:
    codec = JsonCodec(dict[str, list[Hidden]])
    value = {"a": [Hidden(1, {"x"})]}
    assert codec.load(codec.dump(value)) == value


@pytest.mark.parametrize(
    ("result_type", "value"),
    [
        (Card, Card(number=SecretStr("4111"))),
        (int, "five"),
        (int, 1.5),
        (float, float("nan")),
        (Hidden, {"_amount": 1}),
    ],
    ids=["masked", "text", "fraction", "nan", "dict"],
)
def test_results_that_would_not_come_back_are_not_kept(result_type: Any, value: Any) -> None:
    with pytest.raises(ValueError):
        JsonCodec(result_type).dump(value)


# -- exceptions -------------------------------------------------------------------------------------------------------


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("declined"), "declined"),
        (ValueError("file \udc80"), "file \\udc80"),
        (ValueError("x" * 100_000), "x" * 8192),
        (Speechless(), ""),
    ],
    ids=["plain", "surrogate", "long", "speechless"],
)
def test_every_exception_can_be_kept(error: Exception, message: str) -> None:
    kept = StoredResponse(500, (), error_form(error), 0)
    assert read_error(kept) == {"type": type(error).__name__, "message": message}
    assert read_error(kept._replace(body=error_form(error, dead=True)))["dead"] is True


def test_an_exception_that_a_call_kept_in_an_earlier_version_is_read() -> None:
    kept = StoredResponse(500, (), b'{"kind":"ValueError","message":"declined"}', 0)
    assert read_error(kept) == {"type": "ValueError", "message": "declined"}


@pytest.mark.parametrize("body", [None, b"", b"declined", b"[1]", b"\xff"])
def test_what_is_no_kept_exception_reads_as_none(body: bytes | None) -> None:
    assert read_error(StoredResponse(500, (), body, 0)) == {}
    assert read_error(None) == {}
