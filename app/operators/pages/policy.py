"""The policy on idempotency keys that the draft (section 2.6) asks a resource to publish, generated from the rules in force."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import orjson

from oncegate import __version__
from oncegate.cache.record import State
from oncegate.middleware.rules.key import MAX_KEY_CHARACTERS
from oncegate.middleware.rules.policy import Policy
from oncegate.middleware.rules.settings import claims_of

DRAFT = "draft-ietf-httpapi-idempotency-key-header-07"


def published(routes: Sequence[tuple[Policy, Sequence[str]]]) -> bytes:
    """The policy as JSON: each route's rules with its methods, in the order in which they are tried. Times are in seconds."""
    members = {
        "specification": DRAFT,
        "gateway": f"oncegate {__version__}",
        "key": {
            "syntax": ["RFC 9651 String", "bare token of visible ASCII without quote, backslash and comma"],
            "characters": [1, MAX_KEY_CHARACTERS],
            "case_sensitive": True,
        },
        "routes": [_route(policy, methods) for policy, methods in routes],
    }
    return orjson.dumps(members, option=orjson.OPT_INDENT_2)


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
    for state, run in groupby(range(200, 600), key=policy.state):
        statuses = list(run)
        first, last = statuses[0], statuses[-1]
        ranges[_WORDS[state]].append(str(first) if first == last else f"{first}-{last}")
    return ranges
