"""What docs/operations.md says of settings that are changed while clients retry."""

from typing import Any

import pytest

from oncegate.cache.store import Cache
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering, Door

CALLER = [("authorization", "Bearer a"), ("x-tenant", "t")]


@pytest.mark.parametrize(("before", "after"), [({}, {"scope": ["header:X-Tenant"]}), ({}, {"header": "X-Key"})])
async def test_a_retry_is_executed_again_under_another_scope_or_header(door: MakeDoor, before: Any, after: Any) -> None:
    app = Answering(201)
    await door(app, **before).send(headers=CALLER)
    assert not (await door(app, **after).send(headers=CALLER)).replayed
    assert app.calls == 2


async def test_a_retry_is_executed_again_in_another_namespace(cache: Cache, namespace: str) -> None:
    app = Answering(201)
    for name in ("", "-2"):
        assert not (await Door(app, cache, namespace + name).send()).replayed
    assert app.calls == 2


async def test_a_retry_finds_its_record_where_the_former_header_is_an_alias(door: MakeDoor) -> None:
    app = Answering(201)
    await door(app).send()
    both = door(app, header="X-Key", aliases=["Idempotency-Key"])
    assert (await both.send()).replayed
    assert (await both.send(key=None, headers=[("x-key", "k-1")])).replayed
    assert app.calls == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"fingerprint": "raw"}, {"fingerprint": "json"}),
        ({"fingerprint": "json"}, {"fingerprint": "raw"}),
        ({"on_mismatch": "warn"}, {"on_mismatch": "reject"}),
    ],
)
async def test_a_retry_is_refused_where_the_form_of_fingerprints_was_changed(
    door: MakeDoor, before: Any, after: Any
) -> None:
    app = Answering(201)
    await door(app, **before).send()
    assert (await door(app, **after).send()).code == "key-reused"
    assert app.calls == 1
