"""A policy: the rules of one route; the settings, compiled once for the hot path."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from oncegate.cache.fields import HOP_BY_HOP
from oncegate.cache.record import State
from oncegate.middleware.rules.headers.added_headers import OURS, field
from oncegate.middleware.rules.keys.key import claim_name
from oncegate.middleware.rules.keys.key_form import KeyForm
from oncegate.middleware.rules.setting_types import (
    Comparison,
    Completion,
    Kind,
    Mode,
    OnCacheDown,
    OnError,
    OnMismatch,
    OnMissingKey,
    OnUnknown,
)
from oncegate.middleware.rules.settings import IdempotencySettings, Route, claims_of
from oncegate.middleware.rules.versions import Aggregates

RAISE_HEADER: Final = b"idempotency-raise-on-duplicate"
PREFER: Final = b"prefer"
CONTENT_LENGTH: Final = b"content-length"
COOKIE: Final = b"cookie"
_AUTHORIZATION: Final = b"authorization"
ATTEMPT_HEADER: Final = b"idempotency-attempt"
_CACHE_STATUS: Final = field("Cache-Status")

_RELEASED: Final = frozenset({307, 308, 401, 403, 408, 425, 429})
"""The upstream did nothing and says so: nothing is kept, and the key is free. 307 and 308 have the client send the same request
elsewhere (RFC 9110, sections 15.4.8 and 15.4.9), with its key."""
_GATEWAY_ERRORS: Final = frozenset({502, 504})
"""The upstream is a gateway itself and lost sight of the work behind it."""
_FAILED: Final = State.FAILED  # members of an enumeration take long to look up
_STATES: Final = {"success": State.SUCCEEDED, "failure": State.FAILED, "unknown": State.UNKNOWN, "release": None}

TOKEN_HEADER: Final = "Authorization"  # noqa: S105 - a header's name
"""The header of a token, unless it is set otherwise."""
OF_THE_MOMENT: Final = (b"date", b"set-cookie", b"x-request-id")
"""Never stored: what was true, or meant, for one answer only."""

_SOON = 1.0
_SUBMISSION_BYTES: Final = 65536
"""More than what answers a submission can have."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for one route. Times are in milliseconds where the name says so, else in seconds."""

    settings: IdempotencySettings
    route: str
    states: list[State | None]
    """The state that a response leaves its record in, by its status, up to 599; ``None`` for a release."""
    cache_status: list[tuple[bytes, bytes]]
    """The ``Cache-Status`` of an execution, by the same, and at 600 for any other status."""
    key_names: tuple[bytes, ...]
    needs_no_key: bool
    """A request without one is not under enforcement."""
    generates_key: bool
    """A request without one is given one."""
    key_form: KeyForm | None
    """The form that keys have to have; ``None``: any."""
    wait: float
    """Whole seconds that a concurrent duplicate waits which doesn't say how long."""
    decisive: frozenset[bytes]
    """The headers that need a closer look: the key's, and those that clients may not send about attempts."""
    scope_names: tuple[bytes, ...]
    """The headers and claims that tell callers apart, in their order."""
    claims: tuple[bytes, ...]
    """The parts of the scope that a verified token claims."""
    caller_headers: tuple[bytes, ...]
    """The headers that all of them are read from."""
    refuses_cookies: bool
    """Whether a key is refused that comes with a cookie and none of the scope's headers, which nobody has chosen here."""
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
    warns: bool
    """Whether another query or body under a succeeded key is warned of, and answered with the replay."""
    completes_late: bool | None
    """Whether an app's outcome is recorded once it has returned; ``None``: as its route's dependencies want it."""
    # As in the settings, where it takes long to look them up, and every request does.
    raise_on_duplicate: bool
    json_bytes: int
    """The longest body that is compared as a JSON value; -1: none is."""
    max_request_body: int
    max_result: int
    keeps_body: bool
    """Whether more is kept of a response than its status."""
    response_timeout: float
    attempt_timeout: float
    is_partial: bool
    """Whether only a part of the keys is under enforcement."""
    mode: Mode = "sync"
    submission: "Policy | None" = None
    """The rules for a request of this route that is submitted, to be processed later; ``None`` where none is."""
    stream: str = ""
    """In the rules for submissions: where the commands go."""
    travelling: frozenset[bytes] = frozenset()
    """In the rules for submissions: the headers that go with them, beside ``content-*``; the key's line as it was sent."""
    aggregates: Aggregates | None = None
    """In the rules for submissions: how requests name their aggregates, where their commands are numbered."""
    process: str = ""
    """Who executes, in records, where the host's name doesn't say."""

    def is_decisive(self, headers: Iterable[Sequence[Any]]) -> bool:
        """Whether one of these field lines is among those that are ``decisive``."""
        decisive = self.decisive
        for line in headers:  # noqa: SIM110 - a generator takes a call for each header, and each request without a key comes here
            if line[0] in decisive:
                return True
        return False

    @property
    def unshown(self) -> frozenset[bytes]:
        """The headers whose values no answer and no line of the log shows as anything else: keys, and what names callers."""
        return frozenset((*self.key_names, *self.caller_headers, COOKIE, _AUTHORIZATION))

    def state(self, status: int) -> State | None:
        """The state that a response of ``status`` leaves its record in; ``None``: the attempt is released."""
        return self.states[status] if 0 <= status < 600 else _FAILED


MOST_JSON: Final = 8192
"""Bytes of a body that is compared as a JSON value, which is found on the event loop: a longer one is compared byte by byte."""
# What each value of a setting means; one that has no meaning here fails where its policy is made.
AN_ERROR_IS_RETRIED: Final[dict[OnError, bool]] = {"retry": True, "replay": False}
AN_UNKNOWN_IS_RETRIED: Final[dict[OnUnknown, bool]] = {"refuse": False, "retry": True}
NEEDS_NO_KEY: Final[dict[OnMissingKey, bool]] = {"run": True, "reject": False, "generate": False}
GENERATES_KEY: Final[dict[OnMissingKey, bool]] = {"run": False, "reject": False, "generate": True}
WARNS: Final[dict[OnMismatch, bool]] = {"reject": False, "warn": True}
FAILS_OPEN: Final[dict[OnCacheDown, bool]] = {"fail_closed": False, "fail_open": True}
COMPARES_JSON: Final[dict[Comparison, bool]] = {"raw": False, "json": True}
COMPLETES_LATE: Final[dict[Completion, bool | None]] = {"auto": None, "response": False, "app-returned": True}


def kind(status: int, overrides: Mapping[Any, Kind]) -> Kind:
    """The meaning of ``status``: by the route's table, exact before its class (``"4xx"``), else by the contract's."""
    for named in (status, f"{status // 100}xx"):
        if named in overrides:
            return overrides[named]
    if status in _RELEASED:
        return "release"
    if status in _GATEWAY_ERRORS:
        return "unknown"
    return "success" if 200 <= status < 400 else "failure"


def compile_policy(
    settings: IdempotencySettings, route: Route | None = None, token_header: str = TOKEN_HEADER
) -> Policy:
    """The rules of ``route`` over ``settings``. Raises pydantic's ``ValidationError`` for an override that is wrong."""
    if route is None:
        return _compile(settings, "*", {}, token_header)
    settings = route.settings(settings)
    policy = _compile(settings, route.path, route.status, token_header)
    if route.mode == "sync":
        return policy
    # What is answered to a submission is the gateway's own: nothing of it is left out, and its 202 is its success whatever
    # the upstream means by one. Without a record copies could not be recognised: it never fails open.
    kept = {
        "drop_headers": (),
        "max_result": _SUBMISSION_BYTES,
        "keep_body": True,
        "on_cache_down": "fail_closed",
    }
    submission = _compile(settings.model_copy(update=kept), route.path, {}, token_header)
    named = [name.lower().encode() for name in settings.forward_request_headers]
    travelling = frozenset((*submission.key_names, *named))
    submission = replace(submission, mode=route.mode, stream=route.stream, travelling=travelling)
    if route.aggregate is not None:
        aggregates = Aggregates(route.aggregate, route.path, require_version=route.require_version)
        wanted = policy.wanted | aggregates.fields
        policy, submission = replace(policy, wanted=wanted), replace(submission, wanted=wanted, aggregates=aggregates)
    return replace(policy, mode=route.mode, submission=submission)


def _compile(settings: IdempotencySettings, path: str, status: Mapping[Any, Kind], token_header: str) -> Policy:
    key_names = tuple(dict.fromkeys(name.lower().encode() for name in (settings.header, *settings.aliases)))
    claims = tuple(dict.fromkeys(map(claim_name, claims_of(settings))))
    token = token_header.lower().encode()
    scope_names = tuple(dict.fromkeys(map(_scope_name, settings.scope_parts)))
    caller_headers = tuple(dict.fromkeys(token if name in claims else name for name in scope_names))
    dropped = tuple(name.lower().encode() for name in settings.drop_headers)
    takeover = {State.FAILED} if AN_ERROR_IS_RETRIED[settings.on_error] else set()
    if AN_UNKNOWN_IS_RETRIED[settings.on_unknown]:
        takeover.add(State.UNKNOWN)
    own_headers = frozenset((*OURS, key_names[0]))
    refuses_cookies = settings.scope is None
    wanted = {*key_names, *caller_headers, RAISE_HEADER, PREFER, CONTENT_LENGTH, ATTEMPT_HEADER}
    if refuses_cookies:
        wanted.add(COOKIE)
    decisive = frozenset((*key_names, ATTEMPT_HEADER))
    ttl_ms = {
        State.SUCCEEDED: _ms(settings.ttl),
        State.FAILED: _ms(settings.error_ttl),
        State.UNKNOWN: _ms(settings.ttl),
    }
    states = [_STATES[kind(code, status)] for code in range(600)]
    return Policy(
        settings=settings,
        route=path,
        states=states,
        cache_status=[_executed(state, ttl_ms) for state in (*states, _FAILED)],
        key_names=key_names,
        needs_no_key=NEEDS_NO_KEY[settings.on_missing_key],
        generates_key=GENERATES_KEY[settings.on_missing_key],
        key_form=KeyForm.of(settings.key_pattern),
        wait=float(settings.wait),
        decisive=decisive,
        scope_names=scope_names,
        claims=claims,
        caller_headers=caller_headers,
        refuses_cookies=refuses_cookies,
        wanted=frozenset(wanted),
        unstored=frozenset((*HOP_BY_HOP, *OF_THE_MOMENT, *dropped)) | own_headers,
        own_headers=own_headers,
        lease_ms=_ms(settings.lease),
        heartbeat=_ms(settings.lease) / 3000,
        soon=min(_SOON, settings.response_timeout, settings.attempt_timeout, _ms(settings.lease) / 3000),
        retention_ms=_ms(settings.ttl),
        ttl_ms=ttl_ms,
        takeover=frozenset(takeover),
        fails_open=FAILS_OPEN[settings.on_cache_down],
        warns=WARNS[settings.on_mismatch],
        completes_late=COMPLETES_LATE[settings.complete],
        raise_on_duplicate=settings.raise_on_duplicate,
        json_bytes=MOST_JSON if COMPARES_JSON[settings.fingerprint] else -1,
        max_request_body=settings.max_request_body,
        max_result=settings.max_result,
        keeps_body=settings.keep_body,
        response_timeout=float(settings.response_timeout),
        attempt_timeout=float(settings.attempt_timeout),
        is_partial=settings.enforce < 100,
    )


def _executed(state: State | None, ttl_ms: Mapping[State, int]) -> tuple[bytes, bytes]:
    """The field ``Cache-Status`` (RFC 9211) of an execution that leaves its record in ``state``."""
    kept = b"" if state is None else b"; stored; ttl=%d" % (ttl_ms[state] // 1000)
    return _CACHE_STATUS, b"oncegate; fwd=miss" + kept


def _scope_name(part: str) -> bytes:
    kind, _, name = part.partition(":")
    return claim_name(name) if kind == "jwt" else name.lower().encode()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
