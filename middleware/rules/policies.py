"""All policies of a process: which one a request is under, by its method and path."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from oncegate.cache.record import State
from oncegate.middleware.rules.paths.path_pattern import PathPattern
from oncegate.middleware.rules.paths.readings import (
    LONGEST,
    holds_encoded_syntax,
    is_read_in_several_ways,
    normalise,
    readings,
)
from oncegate.middleware.rules.policy import TOKEN_HEADER, Policy, compile_policy
from oncegate.middleware.rules.settings import DEFAULT_METHODS, IdempotencySettings, Route

_PERCENT: Final = ord("%")  # a number is found faster than bytes
_KEPT_PATHS: Final = 4096
_KEPT_CHARACTERS: Final = 256
"""The longest path whose route is kept, so that what clients send fills no more than some 2 MB (5 where it isn't Latin-1)."""


class Policies:
    """All routes. Every request calls `match` first, so its results are cached, for a bounded number of short paths.

    ``token_header`` is where the token comes whose claims a scope names.
    """

    def __init__(
        self, settings: IdempotencySettings, routes: Sequence[Route] = (), token_header: str = TOKEN_HEADER
    ) -> None:
        self._default = compile_policy(settings, None, token_header)
        self.routes = [
            (PathPattern(route.path), frozenset(route.methods), compile_policy(settings, route, token_header))
            for route in routes
        ]
        """Without any, a request's path doesn't matter."""
        self._lower_case = [
            (PathPattern(route.path.lower()), methods, policy)
            for route, (_, methods, policy) in zip(routes, self.routes, strict=True)
        ]
        self.methods = frozenset(DEFAULT_METHODS).union(*[methods for _, methods, _ in self.routes])
        """Those that may be under enforcement; of any other one the path doesn't matter."""
        self.on_match: Callable[[int], None] | None = None
        """Called with the number of a route that a request matches: with the first one of its path, perhaps with later ones."""
        self._find = lru_cache(maxsize=_KEPT_PATHS)(self._search)

    @property
    def observes(self) -> bool:
        """Whether some of them observe what they don't enforce."""
        return any(policy.is_partial and policy.settings.shadow for policy in self.all())

    def match(self, method: str, path: str, raw_path: bytes | None = None) -> Policy | None:
        """The rules for a request, or ``None`` where it is not under enforcement.

        ``path`` is percent-decoded, ``raw_path`` as sent, if that is known: a slash in the one may be none in the other.
        """
        if method not in self.methods:
            return None
        if not self.routes:
            return self._default
        if raw_path is not None and _PERCENT in raw_path and holds_encoded_syntax(raw_path):
            return self._search(method, path, raw_path)
        return self._find(method, path) if len(path) <= _KEPT_CHARACTERS else self._search(method, path)

    @property
    def unshown(self) -> frozenset[bytes]:
        """`Policy.unshown` of all of them."""
        return frozenset[bytes]().union(*[policy.unshown for policy in self.all()])

    def all(self) -> list[Policy]:
        """Every policy, the default last."""
        return [policy for policy, _ in self.with_methods()]

    def with_methods(self) -> list[tuple[Policy, tuple[str, ...]]]:
        """Every policy with the methods that it is for, the default last."""
        routes = [(policy, tuple(sorted(methods))) for _, methods, policy in self.routes]
        return [*routes, (self._default, DEFAULT_METHODS)]

    def _search(self, method: str, path: str, raw_path: bytes = b"") -> Policy | None:
        """The rules for the path as we read it; where some server may read it otherwise, the strictest of all its readings."""
        normal = normalise(path)
        spellings = [normal, normal + "/"] if path.endswith("/") else [normal]
        found = [self._first(self.routes, method, spellings)]
        if raw_path or is_read_in_several_ways(path):
            if len(path) > LONGEST:  # not worth the time: no honest client sends such a path
                found += [policy for _, methods, policy in self.routes if method in methods]
            else:
                spellings = readings(path, raw_path)
                found += [self._first(self.routes, method, [spelling]) for spelling in spellings]
        lower = [spelling.lower() for spelling in spellings]
        if lower != spellings:
            found += [self._first(self._lower_case, method, [spelling]) for spelling in lower]
        return max(found, key=_strictness)  # the first of equals

    def _first(
        self, routes: list[tuple[PathPattern, frozenset[str], Policy]], method: str, spellings: list[str]
    ) -> Policy | None:
        """The first of ``routes`` that is for the method and for one of these paths."""
        for number, (pattern, methods, policy) in enumerate(routes):
            if not methods or method in methods:
                for spelling in spellings:
                    if pattern.matches(spelling):
                        if self.on_match is not None:
                            self.on_match(number)
                        return policy if methods else None
        return self._default if method in DEFAULT_METHODS else None


def _strictness(policy: Policy | None) -> tuple[float, ...]:
    """The sort key that makes one of two policies the stricter."""
    if policy is None:
        return (False,)
    settings = policy.settings
    return (
        True,
        settings.enforce,
        not policy.needs_no_key and not policy.generates_key,
        settings.require_scope,
        policy.generates_key,
        not policy.warns,
        not policy.fails_open,
        State.UNKNOWN not in policy.takeover,
    )
