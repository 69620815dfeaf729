"""The share of the keys that is under enforcement: by the key alone, so that all of its requests are on one side.

Rules of docs/contract.md: R7.20.
"""

import json
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from oncegate import CommandProcessor, IdempotencySettings, MemoryCache, Route
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.share import is_enforced, is_within
from testing import template

KEYS = [uuid4().hex for _ in range(2000)]
SIDES = """
import json, sys
from oncegate.middleware.rules.share import is_within
print(json.dumps([is_within(key, float(sys.argv[2])) for key in json.loads(sys.argv[1])]))
"""


@pytest.mark.parametrize("percent", [1, 5, 37.5, 99])
def test_a_share_is_about_as_large_as_it_is_said_to_be(percent: float) -> None:
    within = sum(is_within(key, percent) for key in KEYS) / len(KEYS) * 100
    assert abs(within - percent) < 6, "ten standard deviations would not be by chance"


def test_none_is_within_nothing_and_all_are_within_all() -> None:
    assert not any(is_within(key, 0) for key in KEYS)
    assert all(is_within(key, 100) for key in KEYS)


def test_a_share_that_grows_lets_no_key_go() -> None:
    shares = [0, 0.1, 1, 5, 20, 50, 99.9, 100]
    for key in KEYS:
        sides = [is_within(key, share) for share in shares]
        assert sides == sorted(sides)


def test_every_process_has_a_key_on_the_same_side() -> None:
    """Whatever seed its hashes have, and whatever it has decided before."""
    keys = KEYS[:200]
    ours = [is_within(key, 30) for key in keys]
    for _ in range(2):
        done = template.run("-c", SIDES, json.dumps(keys), "30", preloaded=())
        assert json.loads(done.stdout) == ours, done.stderr


def test_all_ways_to_write_a_key_and_all_its_callers_are_on_one_side() -> None:
    policy = compile_policy(IdempotencySettings(enforce=50, aliases=("X-Key",)))
    for key in KEYS[:50]:
        lines = [
            [(name, spelled), *more]
            for name in (b"idempotency-key", b"x-key")
            for spelled in (key.encode(), b'"%b"' % key.encode(), b' "%b";a=1 ' % key.encode())
            for more in ([], [(b"authorization", b"Basic alice")], [(b"authorization", b"Basic bob"), (b"x", b"y")])
        ]
        assert {is_enforced(policy, each) for each in lines} == {is_within(key, 50)}


@pytest.mark.parametrize("value", [b"a,b", b"", b'"open', b"\xff"])
def test_what_is_no_key_is_not_under_enforcement(value: bytes) -> None:
    policy = compile_policy(IdempotencySettings(enforce=99.999))
    assert not is_enforced(policy, [(b"idempotency-key", value)])
    assert not is_enforced(policy, [(b"idempotency-key", b"a"), (b"idempotency-key", b"a")])
    assert not is_enforced(policy, [])


@pytest.mark.parametrize("given", [-1, 100.1, "half", float("nan"), True])
def test_a_share_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="enforce"):
        IdempotencySettings(enforce=given)
    with pytest.raises(ValidationError, match="enforce"):
        Route(path="/a", enforce=given)


def test_a_processor_enforces_all_of_its_calls() -> None:
    with pytest.raises(ValueError, match="leave it at 100"):
        CommandProcessor(print, name="n", cache=MemoryCache(), settings=IdempotencySettings(enforce=5))


def test_where_a_path_may_be_read_in_several_ways_the_largest_share_counts() -> None:
    policies = Policies(IdempotencySettings(), [Route(path="/a/b", enforce=0), Route(path="/a%2fb", enforce=50)])
    found = policies.match("POST", "/a/b", b"/a%2Fb")
    assert found is not None
    assert found.settings.enforce > 0
