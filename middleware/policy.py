"""Which requests are under enforcement and by which rules: the settings, compiled once into what the hot path reads."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from oncegate.cache.record import State
from oncegate.middleware.settings import DEFAULT_METHODS, IdempotencySettings, Kind, Mode, Route

RAISE_HEADER: Final = b"idempotency-raise-on-duplicate"
PREFER: Final = b"prefer"
CONTENT_LENGTH: Final = b"content-length"
ATTEMPT_HEADER: Final = b"idempotency-attempt"

_RELEASED: Final = frozenset({401, 403, 408, 425, 429})
"""The upstream did nothing and says so: nothing is kept, and the key is free."""
_GATEWAY_ERRORS: Final = frozenset({502, 504})
"""The upstream is a gateway itself and lost sight of the work behind it."""
_FAILED: Final = State.FAILED  # members of an enumeration take long to look up
_STATES: Final = {"success": State.SUCCEEDED, "failure": State.FAILED, "unknown": State.UNKNOWN, "release": None}

HOP_BY_HOP: Final = (
    b"connection",
    b"proxy-connection",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
)
"""RFC 9110 section 7.6.1. ``Trailer`` goes with them: trailers are not stored."""
OF_THE_MOMENT: Final = (b"date", b"set-cookie")
"""Never stored: what was true, or meant, for one answer only."""
OURS: Final = (b"idempotent-replayed", b"idempotency-key")
"""Response headers that only the gateway may set."""

_SOON = 1.0
_SUBMISSION_BYTES: Final = 65536
"""More than what answers a submission can have."""
_PARAMETERS: Final = re.compile(r";[^/]*")


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for one route. Times are in milliseconds where the name says so, else in seconds."""

    settings: IdempotencySettings
    route: str
    states: list[State | None]
    """By status, up to 599: the state that a response leaves its record in, ``None`` for a release."""
    key_names: tuple[bytes, ...]
    needs_no_key: bool
    """Whether a request without one is not under enforcement."""
    telling: frozenset[bytes]
    """The headers that make a request one of ours: the key's, and what clients may not say of attempts."""
    shortest: int
    longest: int
    """Lengths of their names: most other headers are told from them by that alone, without being hashed."""
    scope_names: tuple[bytes, ...]
    wanted: frozenset[bytes]
    unstored: frozenset[bytes]
    own_headers: frozenset[bytes]
    lease_ms: int
    heartbeat: float
    """Seconds between renewals of a lease."""
    soon: float
    """Seconds after which an attempt counts as one that lasts."""
    retention_ms: int
    ttl_ms: dict[State, int]
    takeover: frozenset[State]
    fails_open: bool
    """Whether attempts run without a record while the cache is down."""
    # As in the settings, where it takes long to look them up, and every request does.
    raise_on_duplicate: bool
    as_json: bool
    max_request_body: int
    max_response_body: int
    response_timeout: float
    attempt_timeout: float
    mode: Mode = "sync"
    submission: "Policy | None" = None
    """The rules for a request of this route that is submitted, to be processed later; ``None`` where none is."""
    stream: str = ""
    """In the rules for submissions: where the commands go."""
    travelling: frozenset[bytes] = frozenset()
    """In the rules for submissions: the headers that go with them, beside ``content-*``; the key's line as it was sent."""

    def passes(self, headers: Iterable[Sequence[Any]]) -> bool:
        """Whether a request with these field lines goes on as it is: there is no key, and none is needed.

        False where it can't be told at a glance.
        """
        shortest, longest = self.shortest, self.longest
        for line in headers:
            name = line[0]
            if shortest <= len(name) <= longest and name in self.telling:
                return False
        return self.needs_no_key

    def state(self, status: int) -> State | None:
        """The state that a response of ``status`` leaves its record in; ``None``: the attempt is released."""
        return self.states[status] if 0 <= status < 600 else _FAILED


def kind(status: int, overrides: Mapping[int, Kind]) -> Kind:
    """What a response of ``status`` says of the command: by the route's table, else by the contract's."""
    if status in overrides:
        return overrides[status]
    if status in _RELEASED:
        return "release"
    if status in _GATEWAY_ERRORS:
        return "unknown"
    return "success" if 200 <= status < 400 else "failure"


def compile_policy(settings: IdempotencySettings, route: Route | None = None) -> Policy:
    """The rules of ``route`` over ``settings``. Raises pydantic's ``ValidationError`` for an override that is wrong."""
    if route is None:
        return _compile(settings, "*", {})
    settings = route.settings(settings)
    policy = _compile(settings, route.path, route.status)
    if route.mode == "sync":
        return policy
    # What is answered to a submission is the gateway's own: nothing of it is left out, and its 202 is its success whatever
    # the upstream means by one. Without a record there would be nothing to tell copies apart by: it never fails open.
    kept = {"drop_headers": (), "max_response_body": _SUBMISSION_BYTES, "on_cache_down": "fail_closed"}
    submission = _compile(settings.model_copy(update=kept), route.path, {})
    return replace(policy, mode=route.mode, submission=_submitted(submission, route))


def _submitted(policy: Policy, route: Route) -> Policy:
    named = [name.lower().encode() for name in policy.settings.forward_request_headers]
    return replace(policy, mode=route.mode, stream=route.stream, travelling=frozenset((*policy.key_names, *named)))


def _compile(settings: IdempotencySettings, path: str, status: Mapping[int, Kind]) -> Policy:
    key_names = tuple(dict.fromkeys(name.lower().encode() for name in (settings.header, *settings.aliases)))
    scope_names = tuple(dict.fromkeys(part.removeprefix("header:").lower().encode() for part in settings.scope))
    dropped = tuple(name.lower().encode() for name in settings.drop_headers)
    takeover = {State.FAILED} if settings.on_error == "retry" else set()
    if settings.on_unknown == "retry":
        takeover.add(State.UNKNOWN)
    own_headers = frozenset((*OURS, key_names[0]))
    telling = frozenset((*key_names, ATTEMPT_HEADER))
    return Policy(
        settings=settings,
        route=path,
        states=[_STATES[kind(code, status)] for code in range(600)],
        key_names=key_names,
        needs_no_key=not settings.require_key and not settings.generate_key,
        telling=telling,
        shortest=min(map(len, telling)),
        longest=max(map(len, telling)),
        scope_names=scope_names,
        wanted=frozenset((*key_names, *scope_names, RAISE_HEADER, PREFER, CONTENT_LENGTH, ATTEMPT_HEADER)),
        unstored=frozenset((*HOP_BY_HOP, *OF_THE_MOMENT, *dropped)) | own_headers,
        own_headers=own_headers,
        lease_ms=_ms(settings.lease),
        heartbeat=_ms(settings.lease) / 3000,
        soon=min(_SOON, settings.response_timeout, settings.attempt_timeout, _ms(settings.lease) / 3000),
        retention_ms=_ms(settings.unknown_ttl),
        ttl_ms={
            State.SUCCEEDED: _ms(settings.ttl),
            State.FAILED: _ms(settings.error_ttl),
            State.UNKNOWN: _ms(settings.unknown_ttl),
        },
        takeover=frozenset(takeover),
        fails_open=settings.on_cache_down == "fail_open",
        raise_on_duplicate=settings.raise_on_duplicate,
        as_json=settings.fingerprint == "json",
        max_request_body=settings.max_request_body,
        max_response_body=settings.max_response_body,
        response_timeout=float(settings.response_timeout),
        attempt_timeout=float(settings.attempt_timeout),
    )


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class Policies:
    """All routes. `match` is what a request asks first, so its answers are kept (a bounded number of them)."""

    def __init__(self, settings: IdempotencySettings, routes: Sequence[Route] = ()) -> None:
        self._default = compile_policy(settings)
        self._routes = [
            (_pattern(route.path), frozenset(route.methods), compile_policy(settings, route)) for route in routes
        ]
        self._methods = frozenset(DEFAULT_METHODS).union(*[methods for _, methods, _ in self._routes])
        self._find = lru_cache(maxsize=4096)(self._search)

    def match(self, method: str, path: str) -> Policy | None:
        """The rules for a request, or ``None`` where it is not under enforcement. ``path`` is percent-decoded."""
        if method not in self._methods:
            return None
        return self._find(method, path) if self._routes else self._default

    def all(self) -> list[Policy]:
        """Every policy, the default last."""
        return [policy for policy, _ in self.with_methods()]

    def with_methods(self) -> list[tuple[Policy, tuple[str, ...]]]:
        """Every policy with the methods that it is for, the default last."""
        routes = [(policy, tuple(sorted(methods))) for _, methods, policy in self._routes]
        return [*routes, (self._default, DEFAULT_METHODS)]

    def _search(self, method: str, path: str) -> Policy | None:
        found = self._search_as_read(method, path)
        if ";" not in path and "\\" not in path:
            return found
        other = self._search_as_read(method, folded(path))
        return max(found, other, key=_strictness)  # the first of equals

    def _search_as_read(self, method: str, path: str) -> Policy | None:
        normal = normalise(path)
        spellings = (normal, normal + "/") if path.endswith("/") else (normal,)
        for pattern, methods, policy in self._routes:
            if method in methods and any(pattern.fullmatch(spelling) for spelling in spellings):
                return policy
        return self._default if method in DEFAULT_METHODS else None


def normalise(path: str) -> str:
    """A decoded path with empty and dot segments resolved (RFC 3986 section 5.2.4) and no slash at its end.

    Upstreams differ in what they fold together; a spelling that one of them folds must not slip past a route.
    """
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return "/" + "/".join(kept)


def folded(path: str) -> str:
    """A path as some upstreams read it that others take literally: without ``;`` parameters (servlet containers), and with
    backslashes as slashes (URL parsers of browsers, and of Node.js).

    Which of the two the upstream is, nobody here knows: where they lead to different rules, the stricter ones count.
    """
    return _PARAMETERS.sub("", path.replace("\\", "/"))


def _strictness(policy: Policy | None) -> tuple[bool, bool, bool]:
    if policy is None:
        return False, False, False
    return True, policy.settings.require_key, policy.settings.require_scope


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in path.split("*")), re.DOTALL)
