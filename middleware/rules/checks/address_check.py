"""Whether the rules that make addresses changed since a process last started: then a retry from before finds no record.

Of each rule a namespace keeps the check values that the last start had. Nothing is refused, since no two scopes can be in use
at once, as two secrets can; a header can, by aliases, so one that is still read is no change.
"""

import json
from asyncio import gather
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from oncegate.cache.store import Cache, KeepsSecretCheck
from oncegate.middleware.rules.checks.secret_check import check_secret
from oncegate.middleware.rules.keys.digests import Digests
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import Policy

AddressRules = Mapping[str, Sequence[str]]
"""Check values by what they are of: unchanged where one of them is kept."""

HEADER: Final = "header"
SCOPE: Final = "scope"
ROUTES: Final = "routes"
_WORDS: Final = {
    HEADER: "header (none that was read is among header and aliases)",
    SCOPE: "scope (with claims: or the header of jwt)",
    ROUTES: "routes whose scope or header is their own",
}
_ALWAYS: Final = "-"
"""Kept beside the check values, so that others can be kept in their place."""
_BYTES: Final = 15
_logged: set[tuple[str, str]] = set()


def address_rules(policies: Policies, *, by_function: bool = False) -> AddressRules:
    """Those of ``policies``, which hold nothing of a secret. ``by_function``: a function names the callers, not the scope."""
    *routes, (default, _) = policies.with_methods()
    scope, header = _own(default, by_function)
    others = []
    for policy, methods in routes:
        of_route = _own(policy, by_function)
        own = [
            mine if methods and mine != theirs else None for mine, theirs in zip(of_route, (scope, header), strict=True)
        ]
        others.append((policy.route, methods, own))
    while others and not any(others[-1][2]):  # those behind the last one that has its own take no request from it
        del others[-1]
    return {HEADER: [_value(name) for name in header], SCOPE: [_value(scope)], ROUTES: [_value(others)]}


def _own(policy: Policy, by_function: bool) -> tuple[list[str], list[str]]:
    """The scope in its order, and where a token comes whose claims it names; and the names that a key is read from, sorted."""
    names = policy.scope_names + (policy.caller_headers if policy.claims else ())
    scope = ["caller="] if by_function else [name.decode() for name in names]
    return scope, sorted(name.decode() for name in policy.key_names)


def _value(rule: Any) -> str:
    return blake2b(json.dumps(rule).encode(), digest_size=_BYTES).hexdigest()


def moved_rules(before: AddressRules, now: AddressRules) -> list[str]:
    """The differences of ``now`` from ``before``, in words."""
    return [_WORDS[of] for of in now if not set(now[of]) & set(before[of])]


async def changed_rules(cache: Cache, namespace: str, rules: AddressRules) -> list[str]:
    """Rules that have changed since the last start, in words; none for caches without check values. Raises `CacheUnavailable`."""
    if not isinstance(cache, KeepsSecretCheck):
        return []
    known = await gather(*[cache.check_secret(_place(namespace, of), rules[of], writes=False) for of in rules])
    return [_WORDS[of] for of, is_known in zip(rules, known, strict=True) if not is_known]


async def check_addresses(cache: Cache, namespace: str, digests: Digests, rules: AddressRules) -> list[str]:
    """Note that records of the namespace are under these secrets and ``rules`` from now on; a line for the log on what changed.

    Once in this process for the same change. Raises `OtherSecret`, `CacheUnavailable`.
    """
    await check_secret(cache, namespace, digests)
    if not isinstance(cache, KeepsSecretCheck):
        return []
    changed = await changed_rules(cache, namespace, rules)
    await gather(*[cache.check_secret(_place(namespace, of), [*rules[of], _ALWAYS], writes=True) for of in rules])
    fresh = [each for each in changed if (namespace, each) not in _logged]
    _logged.update((namespace, each) for each in fresh)
    return [moved_line(namespace, fresh)] if fresh else []


def moved_line(namespace: str, changed: Iterable[str]) -> str:
    """The line about a change: what it means, and what to do about it."""
    return (
        f"namespace {namespace}: not as at the last start: {'; '.join(changed)}. Addresses of records are made of it: a retry of "
        "a request from before finds none, and is executed again. Change it while no client retries (for the longest ttl); "
        "another namespace is no way through, since it moves all of them. A header's former name can stay among aliases. Where "
        "two services share the namespace, give each its own"
    )


def _place(namespace: str, of: str) -> str:
    """Where a rule's check values are kept: no namespace has a colon."""
    return f"{namespace}:{of}"
