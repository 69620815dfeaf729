"""The policy on idempotency keys that the draft (section 2.6) asks a resource to publish, generated from the rules in force."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from oncegate import __version__
from oncegate.cache.record import State
from oncegate.middleware.rules.keys.key import MAX_KEY_CHARACTERS
from oncegate.middleware.rules.policy import Policy
from oncegate.middleware.rules.settings import claims_of

DRAFT = "draft-ietf-httpapi-idempotency-key-header-07"


def published(routes: Sequence[tuple[Policy, Sequence[str]]], digest: str, has_matched: Callable[[int], bool]) -> bytes:
    """The policy as JSON."""
    return orjson.dumps(policy_document(routes, digest, has_matched), option=orjson.OPT_INDENT_2)


def policy_document(
    routes: Sequence[tuple[Policy, Sequence[str]]], digest: str, has_matched: Callable[[int], bool]
) -> dict[str, Any]:
    """The policy: each route's rules with its methods, in the order in which they are tried. Times are in seconds.

    ``digest`` is the configuration's. The last route is for all other paths; of those before it ``has_matched`` says, by their
    numbers, whether a request has come.
    """
    *before, default = (_route(policy, methods) for policy, methods in routes)
    return {
        "specification": DRAFT,
        "gateway": f"oncegate {__version__}",
        "configuration": digest,
        "key": {
            "syntax": ["RFC 9651 String", "bare token of visible ASCII without quote, backslash and comma"],
            "characters": [1, MAX_KEY_CHARACTERS],
            "case_sensitive": True,
        },
        "routes": [*({**route, "matched": has_matched(number)} for number, route in enumerate(before)), default],
    }


def _route(policy: Policy, methods: Sequence[str]) -> dict[str, Any]:
    settings = policy.settings
    return {
        "path": policy.route,
        "methods": list(methods),
        "mode": policy.mode,
        "header": settings.header,
        "aliases": list(settings.aliases),
        "required": settings.on_missing_key == "reject",
        "generated_if_missing": policy.generates_key,
        "key_pattern": settings.key_pattern or None,
        "wait": {"by_default": settings.wait, "at_most": settings.max_wait},
        "scope": {
            "headers": [part.removeprefix("header:") for part in settings.scope_parts if part.startswith("header:")],
            "claims": list(claims_of(settings)),
            "required": settings.require_scope,
        },
        "fingerprint": {"parts": ["method", "path", "query", "body"], "body": settings.fingerprint},
        "expiry": {"success": settings.ttl, "error": settings.error_ttl, "unknown": settings.ttl},
        "statuses": _statuses(policy),
        "enforced_percent": settings.enforce,
        "on_error": settings.on_error,
        "on_unknown": settings.on_unknown,
        "on_mismatch": settings.on_mismatch,
        "on_duplicate": "error" if settings.raise_on_duplicate else "replay",
        "documentation": settings.docs_url,
    }


_WORDS = {State.SUCCEEDED: "success", State.FAILED: "error", State.UNKNOWN: "unknown", None: "not_kept"}


def _statuses(policy: Policy) -> dict[str, list[str]]:
    """Ranges of statuses, ``"200-399"``, by what becomes of them."""
    ranges: dict[str, list[str]] = {word: [] for word in _WORDS.values()}
    states, first = policy.states, 200
    for last in range(200, 600):
        if last == 599 or states[last + 1] is not states[first]:
            ranges[_WORDS[states[first]]].append(str(first) if first == last else f"{first}-{last}")
            first = last + 1
    return ranges
