"""Who is the caller, and that no record is reached by another.

Rules of docs/contract.md: R1.3, R2.13, R6.1, R6.2, R6.3, R6.6, R6.7, R6.8, R6.9.
"""

import pytest

from oncegate.cache.store import Cache
from oncegate.middleware.rules.keys.digests import UNKEYED, given_digests
from oncegate.middleware.rules.keys.key import (
    LastCaller,
    execution_key,
    record_digests,
    record_id,
    record_key,
    scope_digest,
    scope_parts,
)
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Door


async def test_two_callers_have_two_records_under_one_key(door: MakeDoor) -> None:
    there = door(app := Answering(201))
    alice, bob = [("authorization", "Bearer alice")], [("authorization", "Bearer bob")]
    assert (await there.send(headers=alice)).body == b"answer 1"
    assert (await there.send(headers=bob)).body == b"answer 2"
    assert (await there.send()).body == b"answer 3", "nobody in particular is a caller, too"
    for headers, body in ((alice, b"answer 1"), (bob, b"answer 2"), ([], b"answer 3")):
        again = await there.send(headers=headers)
        assert (again.body, again.replayed) == (body, True)
    assert (await there.send(b"other", headers=[("authorization", "Bearer carol")])).status == 201, "not even a 422"
    assert app.calls == 4


async def test_white_space_around_a_value_tells_no_callers_apart(door: MakeDoor) -> None:
    """RFC 9110 section 5.5: it is no part of the value. Some servers leave it there."""
    there = door(app := Answering(201))
    assert (await there.send(headers=[("authorization", "Bearer x")])).status == 201
    for value in ("Bearer x ", "Bearer x\t", " Bearer x", "\t Bearer x \t "):
        again = await there.send(headers=[("authorization", value)], key=" k-1\t")
        assert again.replayed
        assert again.value("idempotency-key") == "k-1"
    assert app.calls == 1


async def test_two_namespaces_on_one_cache_share_nothing(cache: Cache, namespace: str) -> None:
    app = Answering(201)
    for name in (namespace, namespace + "2"):
        assert not (await Door(app, cache, name).send()).replayed
    assert app.calls == 2


async def test_scope_by_several_headers(door: MakeDoor) -> None:
    there = door(app := Answering(201), scope=["header:X-Api-Key", "header:X-Tenant"])
    callers = [
        [("x-api-key", "a"), ("x-tenant", "b")],
        [("x-api-key", "b"), ("x-tenant", "a")],
        [("x-api-key", "ab")],
        [("x-tenant", "ab")],
        [("x-api-key", "a"), ("x-api-key", "b")],
        [("x-api-key", "b"), ("x-api-key", "a")],
        [("x-api-key", "")],
        [],
    ]
    for caller in callers:
        assert not (await there.send(headers=caller)).replayed
    for number, caller in enumerate(callers, 1):
        again = await there.send(headers=[*caller, ("authorization", "does not count here")])
        assert (again.body, again.replayed) == (b"answer %d" % number, True)
    assert app.calls == len(callers)


async def test_require_scope_takes_any_of_the_scope_s_headers(door: MakeDoor) -> None:
    there = door(Answering(201), scope=["header:X-Api-Key", "header:X-Tenant"], require_scope=True)
    missing = await there.send()
    assert missing.code == "caller-missing"
    assert missing.value("www-authenticate") == 'Header name="x-api-key", Header name="x-tenant"'
    assert (await there.send(headers=[("x-tenant", "t")])).status == 201
    assert (await there.send(key=None)).status == 201, "what is not enforced needs no caller"


def test_crafted_parts_do_not_collide() -> None:
    """What separates the parts is their length, so that no value can pretend to be two."""
    names = (b"a", b"b")
    scopes = [
        scope_parts(fields, names)
        for fields in (
            {},
            {b"a": [b"x"]},
            {b"b": [b"x"]},
            {b"a": [b"x"], b"b": [b"y"]},
            {b"a": [b"x", b"y"]},
            {b"a": [b"xy"]},
            {b"a": [b"x1:b1:11:y"]},
            {b"a": [b"xy", b""]},
            {b"a": [b"x"], b"b": [b"b0"]},
            {b"a": [b"xb1"]},
            {b"a": [b""]},
            {b"a": [b"", b""]},
            {b"a": [b"1:b1:0"]},
        )
    ]
    keys = [record_key("n", key, scope) for key in ("k", "k:", "1:k", "k1:a") for scope in scopes]
    assert len(set(keys)) == len(keys)
    assert all(len(key.split(":")) == 3 for key in keys), "a key can't reach into the next part"


LOOK_UP_KEYS = [
    ("k", None, "HkZd2jGo.bKl.cKcdaJ3:t9uHGWxINAXkD4QB.h_J"),
    ("k", [], "HkZd2jGo.bKl.cKcdaJ3:t9uHGWxINAXkD4QB.h_J"),
    ("order-4711", [b"authorization", b"1", b"Bearer secret"], "3TNku3VZ.sQvlfePQy6W:v2sL2vHw666LYpBgkfss"),
    ("a b", [b"x-api-key", b"1", b"k", b"x-tenant", b"2", b"t", b""], "Ga6.CEiwTid4VyICD_Ox:XDuh.jTKMQQADDrhZe_4"),
    ("\u20ac", [b"caller", b"bob"], "jfll946rNn7CXPp3QL59:dNj1lU_soP.eDT488Wbg"),
    ("k" * 255, [b"authorization", b"0", b"x-tenant", b"1", b"t"], "oeZH9dChkUCHgmWk9Iqa:mc4QbMn4XjcuR07wStNB"),
]


@pytest.mark.parametrize(("key", "scope", "identifier"), LOOK_UP_KEYS)
def test_look_up_keys_are_spelled_as_ever(key: str, scope: list[bytes] | None, identifier: str) -> None:
    """They are stored: another spelling would lose every record that there is."""
    look_up_key = record_key("payments", key, scope)
    assert look_up_key == f"payments:{identifier}"
    assert record_id(look_up_key) == identifier
    assert record_id(execution_key(look_up_key, "a}b")) == f"{identifier}:a}}b"
    assert scope_digest(scope) == identifier.partition(":")[2]


def test_a_caller_who_comes_again_has_the_same_digest_and_another_one_none_of_it() -> None:
    """Whatever differs: a value, the name that it came under, how many there are, or the secret."""
    secrets = [UNKEYED, given_digests("s" * 32), given_digests("t" * 32)]
    scopes = [None, [b"a", b"1", b"b"], [b"a", b"1", b"c"], [b"b", b"1", b"b"], [b"a", b"2", b"b", b"c"], [b"a", b"b"]]
    calls = [(scope, digests) for scope in scopes for digests in secrets]
    last = LastCaller()
    for one in calls:
        for scope, digests in (one, *calls, one, one):
            assert record_digests("k", scope, digests, last) == record_digests("k", scope, digests)


def test_look_up_key_gives_away_neither_key_nor_credential() -> None:
    look_up_key = record_key("payments", "order-4711", [b"authorization", b"1", b"Bearer secret"])
    assert look_up_key.startswith("payments:")
    assert "order" not in look_up_key
    assert "secret" not in look_up_key
    assert len(record_id(look_up_key)) == 41
    assert record_id(look_up_key) == record_id(
        record_key("other", "order-4711", [b"authorization", b"1", b"Bearer secret"])
    )


@pytest.mark.parametrize(
    "scheme", ["AWS4-HMAC-SHA256 Credential=x", "OAuth a=b", "HMAC x", "Digest a=b", "Signature x"]
)
async def test_first_signed_request_warns_that_its_caller_changes(
    door: MakeDoor, caplog: pytest.LogCaptureFixture, scheme: str
) -> None:
    there = door(Answering(201))
    for _ in range(2):
        await there.send(headers=[("authorization", scheme)])
    assert caplog.text.count("signing scheme") == 1
    assert scheme not in caplog.text


async def test_an_explicit_scope_does_not_warn(door: MakeDoor, caplog: pytest.LogCaptureFixture) -> None:
    there = door(Answering(201), scope=["header:Authorization"])
    await there.send(headers=[("authorization", "AWS4-HMAC-SHA256 x")])
    assert "signing" not in caplog.text


async def test_nothing_secret_is_logged(door: MakeDoor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    there = door(Answering(504, 201, body=b"iban=DE89"), on_unknown="retry", on_mismatch="warn")
    headers = [("authorization", "Bearer hunter2"), ("prefer", "wait=1")]
    for body in (b"card=4111", b"card=4111", b"card=4242", b"card=4111"):
        await there.send(body, key="secret-key", headers=headers)
    logged = "".join(record.getMessage() for record in caplog.records if record.name.startswith("oncegate"))
    assert logged
    for secret in ("hunter2", "secret-key", "4111", "4242", "DE89"):
        assert secret not in logged
