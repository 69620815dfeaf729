"""`key_pattern`: which keys a route takes, and that no pattern takes long.

Rules of docs/contract.md: R2.23, R4.12.
"""

from time import perf_counter

import pytest
from pydantic import ValidationError

from oncegate.middleware.rules.keys.key_form import A_GENERATED_KEY, KeyForm
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

UUID7 = "01890a5d-ac96-774b-bcce-b302099a8057"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


@pytest.mark.parametrize(
    ("pattern", "taken", "refused"),
    [
        ("uuid", [UUID7, UUID7.upper(), A_GENERATED_KEY], [f"{UUID7}0", UUID7[:-1], f"{{{UUID7}}}", "order-1", ULID]),
        ("uuid7", [UUID7, UUID7.upper()], [A_GENERATED_KEY, UUID7.replace("-b", "-c"), UUID7.replace("-", "")]),
        ("ulid", [ULID, ULID.lower()], [ULID[1:], "8" + ULID[1:], ULID.replace("Z", "U"), UUID7]),
        (
            r"order-[0-9]{1,9}",
            ["order-1", "order-123456789"],
            ["order-", "xorder-1", "order-1x", "order-1 ", "ORDER-1"],
        ),
        ("a|b", ["a", "b"], ["ab", "ax", "xb"]),
        ("(?i)abc", ["ABC", "abc"], ["abcd"]),
        ("[^ ]+", ["x" * 255], ["a b", " "]),
    ],
)
async def test_keys_of_another_form_are_refused(
    door: MakeDoor, pattern: str, taken: list[str], refused: list[str]
) -> None:
    there = door(app := Answering(201), routes=[Route(path="/payments", key_pattern=pattern)])
    for key in refused:
        answer = await there.send(key=f'"{key}"')
        assert (answer.status, answer.code, answer.value("idempotency-key")) == (400, "key-invalid", None)
        assert KeyForm(pattern).words in answer.problem["detail"]
        assert key in pattern or key not in answer.problem["detail"]
        assert (await there.send(key=f'"{key}"', path="/orders")).status == 201, "another route takes any"
    assert app.calls == len(refused)
    for key in taken:
        answer = await there.send(key=f'"{key}"', path="/payments")
        assert (answer.status, answer.value("idempotency-key")) == (201, f'"{key}"')
    assert app.calls == len(refused) + len(taken)


async def test_a_key_in_an_alias_has_the_form_too(door: MakeDoor) -> None:
    there = door(Answering(201), aliases=["X-Request-Key"], key_pattern="uuid7")
    assert (await there.send(key=None, headers=[("x-request-key", "order-1")])).code == "key-invalid"
    assert (await there.send(key=None, headers=[("x-request-key", UUID7)])).status == 201


async def test_a_key_that_is_made_here_has_the_form(door: MakeDoor) -> None:
    there = door(Answering(201), on_missing_key="generate", key_pattern="uuid")
    made = (await there.send(key=None)).value("idempotency-key")
    assert made is not None
    assert (await there.send(key=made)).replayed


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("uuid7", 'refuses the keys that on_missing_key = "generate" makes: UUIDs of version 4'),
        ("(a", "is no regular expression in Rust's syntax (unclosed group), nor one of uuid, uuid7, ulid"),
        ("a)(b", "is no regular expression in Rust's syntax (unopened group)"),
        ("(?=a)b", "is no regular expression in Rust's syntax (look-around"),
        (r"(a)\1", "is no regular expression in Rust's syntax (backreferences"),
        ("(?x)a#", "is no regular expression in Rust's syntax (unclosed group)"),
        ("(a{0,255}){0,255}", "is too large: with its counts written out it has more than 400 steps"),
        ("a{0,100}" * 5, "is too large"),
        (r"(\w{0,19}){0,19}", "is too large"),
    ],
)
def test_a_pattern_that_can_not_be_used(pattern: str, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        IdempotencySettings(key_pattern=pattern, on_missing_key="generate")
    assert message in str(raised.value)
    assert "\n" not in raised.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+",
        r"(a|a)*",
        r"(a|aa)+",
        r"(.*a){99}",
        r"(a?){99}a{99}",
        r"([a-z]+)*",
        r"(.{0,19}){0,19}",
        r"((a{0,7}){0,7}){0,7}",
        r"(\w+\s?)*",
        r"(.*,){11}P",
    ],
)
def test_no_pattern_holds_up_the_loop(pattern: str) -> None:
    form = KeyForm(pattern)
    for key in ("a" * 254 + "!", ("ab1-" * 64)[:254] + "!", "," * 255, "a" * 255):
        taken = []
        for _ in range(20):  # the least of them is the pattern's: a machine under load takes longer in between
            form = KeyForm(pattern)  # what the engine has learnt of one key is forgotten
            began = perf_counter()
            form.matches(key)
            taken.append(perf_counter() - began)
        assert min(taken) < 0.005
