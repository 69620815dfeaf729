"""Which values name a key, and which keys are one.

Rules of docs/contract.md: R2.1, R2.2, R2.3, R2.4, R3.1, R4.12.
"""

import pytest

from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

LONGEST = "k" * 255

ONE_KEY = [
    pytest.param("abc", '"abc"', id="bare and quoted"),
    pytest.param('"abc"', "abc", id="quoted and bare"),
    pytest.param('"abc"', '"abc";v=1;b', id="parameters are ignored"),
    pytest.param('"abc"', '"abc" ; v="x;y" ;a=?1', id="parameters with spaces and strings are ignored"),
    pytest.param("abc", " \tabc ", id="white space around it"),
    pytest.param(LONGEST, f'"{LONGEST}"', id="the longest, bare and quoted"),
    pytest.param('"a;b"', "a;b", id="a semicolon is part of a bare key"),
    pytest.param(
        "!#$%&'()*+-./:;<=>?@[]^_`{|}~", '"!#$%&\'()*+-./:;<=>?@[]^_`{|}~"', id="every mark a bare key may have"
    ),
]

TWO_KEYS = [
    pytest.param("abc", "ABC", id="case-sensitive"),
    pytest.param('"a"', '" a"', id="a space inside counts"),
    pytest.param(r'"a\\"', r'"a"', id="an escaped backslash is a character"),
    pytest.param(r'"a\""', r'"a"', id="an escaped quote is a character"),
    pytest.param("k", "k;v=1", id="a bare key has no parameters"),
]

ILLEGAL = [
    pytest.param("", id="empty"),
    pytest.param("  ", id="only spaces"),
    pytest.param('""', id="an empty string"),
    pytest.param('"', id="one quote"),
    pytest.param('"abc', id="never closed"),
    pytest.param('abc"', id="a quote at the end of a bare key"),
    pytest.param('a"b', id="a quote in a bare key"),
    pytest.param(r"a\b", id="a backslash in a bare key"),
    pytest.param("a,b", id="a comma in a bare key"),
    pytest.param("a b", id="a space in a bare key"),
    pytest.param('"a","b"', id="a list"),
    pytest.param('"a" b', id="something after the string"),
    pytest.param('"a";', id="a parameter without a name"),
    pytest.param('"a";V=1', id="a parameter's name in upper case"),
    pytest.param('"a";v="x', id="a parameter's string never closed"),
    pytest.param(r'"a\b"', id="an escape that is none"),
    pytest.param('"a\\', id="it ends in an escape"),
    pytest.param('"a\tb"', id="a tab in a string"),
    pytest.param('"a\x7fb"', id="DEL in a string"),
    pytest.param('"a\x00b"', id="NUL in a string"),
    pytest.param("a\x1fb", id="a control character"),
    pytest.param("caf\xe9", id="not ASCII, bare"),
    pytest.param('"caf\xe9"', id="not ASCII, quoted"),
    pytest.param("k" * 256, id="too long, bare"),
    pytest.param('"' + "k" * 256 + '"', id="too long, quoted"),
    pytest.param('"' + r"\"" * 256 + '"', id="too long, escaped"),
]


@pytest.mark.parametrize(("first", "retry"), ONE_KEY)
async def test_key_two_spellings_name_one_key(door: MakeDoor, first: str, retry: str) -> None:
    there = door(app := Answering(201))
    assert (await there.send(key=first)).status == 201
    again = await there.send(key=retry)
    assert again.replayed
    assert again.body == b"answer 1"
    assert app.calls == 1


@pytest.mark.parametrize(("first", "other"), TWO_KEYS)
async def test_key_two_keys_have_two_records(door: MakeDoor, first: str, other: str) -> None:
    there = door(app := Answering(201))
    await there.send(key=first)
    assert not (await there.send(key=other)).replayed
    assert app.calls == 2


@pytest.mark.parametrize("value", ILLEGAL)
async def test_key_of_an_illegal_form_is_key_invalid(door: MakeDoor, value: str) -> None:
    app = Answering(201)
    answer = await door(app).send(key=value)
    assert (answer.status, answer.code) == (400, "key-invalid")
    assert answer.value("idempotency-key") is None
    assert len(value) < 3 or value not in answer.problem["detail"]
    assert app.calls == 0


async def test_key_255_characters_are_counted_after_unquoting(door: MakeDoor) -> None:
    app = Answering(201)
    answer = await door(app).send(key='"' + r"\"" * 255 + '"')
    assert answer.status == 201
    assert app.calls == 1


async def test_key_in_two_field_lines_is_key_invalid_even_if_they_agree(door: MakeDoor) -> None:
    app = Answering(201)
    answer = await door(app).send(key="a", headers=[("idempotency-key", "a")])
    assert answer.code == "key-invalid"
    assert app.calls == 0


async def test_key_of_an_alias_is_the_same_key_and_echoed_under_the_header_s_name(door: MakeDoor) -> None:
    app = Answering(201)
    there = door(app, aliases=["X-Idempotency-Key", "PayPal-Request-Id", "Key", "Longer-Than-The-Name-Of-The-Header"])
    await there.send(key="a")
    for alias in ("x-idempotency-key", "paypal-request-id", "key", "longer-than-the-name-of-the-header"):
        again = await there.send(key=None, headers=[(alias, '"a"')])
        assert again.replayed
        assert again.value("idempotency-key") == '"a"'
    assert app.calls == 1


async def test_key_alias_beside_the_header_must_name_the_same_key(door: MakeDoor) -> None:
    there = door(app := Answering(201), aliases=["X-Idempotency-Key"])
    assert (await there.send(key="a", headers=[("x-idempotency-key", '"a"')])).status == 201
    assert (await there.send(key="a", headers=[("x-idempotency-key", "b")])).code == "key-invalid"
    assert app.calls == 1


async def test_key_an_unconfigured_alias_is_no_key(door: MakeDoor) -> None:
    app = Answering(201)
    answer = await door(app).send(key=None, headers=[("x-idempotency-key", "a")])
    assert answer.value("cache-status") == "oncegate; fwd=bypass"


async def test_key_comes_in_the_configured_header(door: MakeDoor) -> None:
    there = door(app := Answering(201), header="Request-Token", on_missing_key="reject")
    first = await there.send(key=None, headers=[("request-token", "a")])
    assert (first.status, first.value("request-token")) == (201, "a")
    assert (await there.send(key=None, headers=[("request-token", "a")])).replayed
    assert (await there.send(key="a")).code == "key-missing"
    assert app.calls == 1


@pytest.mark.parametrize(("size", "status"), [(4096, 201), (4097, 400)])
async def test_key_parameters_are_ignored_up_to_a_size(door: MakeDoor, size: int, status: int) -> None:
    answer = await door(Answering(201)).send(key='"k"' + ";" + "a" * (size - 4))
    assert answer.status == status
