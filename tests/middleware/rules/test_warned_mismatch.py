"""`on_mismatch = "warn"` forgives another query or body of the same method and path, and nothing else.

Rules of docs/contract.md: R1.3, R5.14.
"""

from collections.abc import Callable
from typing import Any

import pytest

from oncegate.cache.record import State
from oncegate.cache.store import Cache
from oncegate.middleware.calls.errors import KeyReusedError
from oncegate.middleware.calls.processor import CommandProcessor
from oncegate.middleware.rules.errors import Refusal
from oncegate.middleware.rules.keys.key import fingerprint, forgiving, same_operation
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

ROUTES = [
    Route.model_validate({"path": "/public/*", "on_mismatch": "warn", "methods": ("POST", "PATCH")}),
    Route.model_validate({"path": "/notes", "on_mismatch": "warn", "fingerprint": "json"}),
]
OTHERS = [("POST", "/login"), ("POST", "/public/y"), ("POST", "/notes"), ("PATCH", "/public/x"), ("POST", "/public/x/")]


@pytest.mark.parametrize(("method", "path"), OTHERS)
async def test_a_route_that_warns_opens_no_other_route_s_answers(door: MakeDoor, method: str, path: str) -> None:
    there = door(app := Answering(201), routes=ROUTES)
    await there.send(method=method, path=path)
    assert (await there.send(path="/public/x")).code == "key-reused"
    assert (await there.send(b"other", path="/public/x")).code == "key-reused"
    assert app.calls == 1


@pytest.mark.parametrize(("method", "path"), OTHERS)
async def test_nor_does_another_route_give_away_its_own(door: MakeDoor, method: str, path: str) -> None:
    there = door(app := Answering(201), routes=ROUTES)
    await there.send(path="/public/x")
    for body in (b'{"amount": 1}', b"other"):
        assert (await there.send(body, method=method, path=path)).code == "key-reused"
    assert app.calls == 1


async def test_another_body_or_query_of_the_same_method_and_path_is_forgiven(door: MakeDoor) -> None:
    seen: list[Any] = []
    there = door(app := Answering(201), routes=ROUTES, observe=seen.append)
    await there.send(path="/public/x")
    for again in ({}, {"body": b"other"}, {"query_string": b"a=1"}, {"body": b"", "query_string": b"a=1"}):
        assert (await there.send(path="/public/x", **again)).replayed
    assert [observation.mismatch for observation in seen] == [False, False, True, True, True]
    assert app.calls == 1


@pytest.mark.parametrize("before", ["reject", "warn"])
async def test_retries_meet_the_records_of_before_the_policy_was_changed(door: MakeDoor, before: str) -> None:
    """As after an upgrade: records of versions in which both policies had one form of fingerprint still match."""
    old = door(app := Answering(201), on_mismatch=before)
    new = door(app, on_mismatch="warn")
    await old.send()
    again = await new.send()
    assert (again.body, again.replayed) == (b"answer 1", True)
    other = await new.send(b"other")
    assert other.replayed if before == "warn" else other.code == "key-reused"
    assert app.calls == 1


@pytest.mark.parametrize("status", [500, 504])
async def test_what_failed_is_tried_again_by_the_same_request_alone(door: MakeDoor, status: int) -> None:
    there = door(app := Answering(status, 201), on_mismatch="warn", on_unknown="retry")
    await there.send()
    assert (await there.send(b"other")).code == "key-reused"
    assert (await there.send()).status == 201
    assert app.calls == 2
    assert await there.state() is State.SUCCEEDED


async def test_a_processor_that_warns_gives_no_other_processor_s_result(cache: Cache, namespace: str) -> None:
    def processor(name: str, execute: Callable[[str], str]) -> CommandProcessor[str, str]:
        rules = IdempotencySettings(on_mismatch="warn")
        return CommandProcessor(execute, name=name, cache=cache, namespace=namespace, settings=rules)

    login, note = processor("login", lambda _: "a token"), processor("note", lambda text: text)
    assert await login.process("alice", idempotency_key="k") == "a token"
    with pytest.raises((KeyReusedError, Refusal)):
        await note.process("hello", idempotency_key="k")
    assert await login.process("bob", idempotency_key="k") == "a token"


def test_the_form_for_warnings_is_not_the_other_one() -> None:
    """Of a request that another route recorded, nothing in it is taken for the same method and path."""
    whole = fingerprint("POST", b"/public/x", b"", b"a")
    warned = forgiving("POST", b"/public/x", whole)
    assert len(warned) == len(whole)
    assert same_operation(warned, forgiving("POST", b"/public/x", fingerprint("POST", b"/public/x", b"q", b"b")))
    assert not same_operation(warned, whole)
    assert warned != forgiving("POST", b"/public/x", fingerprint("POST", b"/public/x", b"", b"b"))
    for method, path in (("POST", b"/public/xa"), ("POS", b"T/public/x"), ("PATCH", b"/public/x")):
        assert not same_operation(warned, forgiving(method, path, whole))
