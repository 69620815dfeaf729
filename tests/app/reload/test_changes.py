"""What can be in effect without a restart, what waits for one, and which steps of a rotation are left out.

Rules of docs/contract.md: R10.14, R10.16.
"""

import base64
from typing import Any

import pytest

from oncegate.app.reload.changes import AFTER_RESTART, in_effect
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError

OLD, NEW, OTHER = (f"{name} secret, of 32 bytes or more than that" for name in ("an old", "a new", "another"))
KEYS = [f"{name}:{base64.b64encode(name.encode() * 8).decode()}" for name in ("2025", "2026")]


def settings(**given: Any) -> GatewaySettings:
    return GatewaySettings(**{"upstream": "http://127.0.0.1:9", **given})


RESTART: dict[str, Any] = {
    "host": "127.0.0.2",
    "port": 8081,
    "ops_port": 9000,
    "workers": 2,
    "cache": "redis://127.0.0.1:1",
    "cache_timeout": 0.4,
    "memory_limit": 1000,
    "namespace": "another",
    "sample_records": 5,
    "access_log": "combined",
    "access_log_file": "access.log",
    "tracing": True,
}


@pytest.mark.parametrize("name", RESTART)
def test_what_a_process_has_had_since_its_start_waits_and_all_else_is_in_effect(name: str) -> None:
    shared = {"cache": "redis://127.0.0.1:2", "access_log": "json"}
    effect, wait = in_effect(settings(**shared), settings(**{**shared, name: RESTART[name], "max_in_flight": 7}))
    assert wait == (name,)
    assert getattr(effect, name) == getattr(settings(**shared), name)
    assert effect.max_in_flight == 7


def test_each_of_them_was_tried() -> None:
    assert {*RESTART} == {*AFTER_RESTART}


def test_what_does_not_hold_together_with_what_waits_is_refused() -> None:
    """A lease that is long enough for the new time-out of the cache, and not for the one that stays."""
    short = settings(cache_timeout=0.1, idempotency={"lease": 0.5})
    with pytest.raises(
        ConfigurationError, match=r"^idempotency.lease: 0.5 is below 1.5; .*until a restart: cache_timeout$"
    ):
        in_effect(settings(), short)


STEPS: list[Any] = ["", OLD, [OLD, NEW], [NEW, OLD], NEW, ["none", OLD], [OLD, "none"]]
NEIGHBOURS = [("", ["none", OLD]), (["none", OLD], [OLD, "none"]), ([OLD, "none"], OLD)]
NEIGHBOURS += [(OLD, [OLD, NEW]), ([OLD, NEW], [NEW, OLD]), ([NEW, OLD], NEW)]


@pytest.mark.parametrize("before", STEPS, ids=str)
@pytest.mark.parametrize("after", STEPS, ids=str)
def test_only_neighbouring_steps_of_a_rotation_follow_each_other(before: Any, after: Any) -> None:
    """Back and forth. [old, new] and [old, none] are no steps of one rotation, and yet each puts records by the old one."""
    running, read = settings(secret=before), settings(secret=after)
    sides = (before, after), (after, before)
    first = [each[0] if isinstance(each, list) else each or "none" for each in (before, after)]
    if before == after or any(side in NEIGHBOURS for side in sides) or first[0] == first[1]:
        assert in_effect(running, read) == (read, ())
        return
    with pytest.raises(ConfigurationError, match=r"under another secret|a step of its rotation is left out") as refused:
        in_effect(running, read)
    assert OLD not in str(refused.value)
    assert NEW not in str(refused.value)


def test_another_secret_is_the_line_of_a_start() -> None:
    with pytest.raises(
        ConfigurationError, match="cache: the records of namespace default are under another secret: every"
    ):
        in_effect(settings(secret=OLD), settings(secret=OTHER))


def test_what_is_encrypted_can_be_read_by_who_has_not_switched() -> None:
    first, second = KEYS
    for before, after in (([first], KEYS), (KEYS, KEYS[::-1]), (KEYS[::-1], [second]), (["none", first], [first])):
        read = settings(encryption_keys=after)
        assert in_effect(settings(encryption_keys=before), read) == (read, ())
    with pytest.raises(ConfigurationError, match="encryption_keys: the first one was not in use before"):
        in_effect(settings(encryption_keys=[first]), settings(encryption_keys=[second, first]))
    effect, wait = in_effect(settings(), settings(encryption_keys=[first]))
    assert (effect.encryption_keys, wait) == ((), ("encryption_keys",))
