"""The response headers that are added here, each declared once: who adds, exposes, describes or drops one takes it from here."""

from copy import deepcopy
from typing import Any, Final, NamedTuple


class AddedHeader(NamedTuple):
    """``meaning`` and ``schema`` (JSON Schema) are for descriptions of an API."""

    name: str
    meaning: str
    schema: dict[str, Any]
    is_ours: bool = False
    """Nobody else may set it: on methods under enforcement an upstream's own is dropped, and it is never stored."""
    is_on_replays: bool = False
    """A replay has its own: it is not taken over into a response that an operator gives."""
    is_exposed: bool = True
    """Scripts in browsers may read it (CORS)."""


_STRING: Final = {"type": "string"}

ADDED_HEADERS: Final = (
    AddedHeader(
        "Idempotency-Key",
        "The key, as it was sent; not on key-invalid, key-missing and what has no key.",
        _STRING,
        is_ours=True,
        is_on_replays=True,
    ),
    AddedHeader(
        "Idempotent-Replayed",
        "On a response that another request's attempt produced, and only there.",
        {"type": "string", "enum": ["true"]},
        is_ours=True,
        is_on_replays=True,
    ),
    AddedHeader(
        "Cache-Status",
        "RFC 9211; whether this is a replay and for how many seconds more.",
        {"type": "string", "pattern": "^oncegate; (hit; ttl=[0-9]+|fwd=miss(; stored)?|fwd=bypass)$"},
        is_on_replays=True,
    ),
    AddedHeader(
        "Retry-After",
        "Seconds until the same request is worth another try.",
        {"type": "integer", "minimum": 0},
    ),
    AddedHeader(
        "Preference-Applied",
        "respond-async where a command was accepted as it was asked for, and where a wait took place, the seconds that were "
        "allowed for it.",
        {"type": "string", "pattern": "^(respond-async|(respond-async, )?wait=[0-9]+)$"},
        is_on_replays=True,
    ),
    AddedHeader(
        "X-Request-Id",
        "The id of this request, by which logs name it: the request's own, where that is well-formed. On problems, and on every "
        "answer of a gateway with an access log.",
        {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
        is_on_replays=True,
    ),
    AddedHeader(
        "Link",
        "Leads to the documentation of problems.",
        {"type": "string", "pattern": '^<[^>]+>; rel="describedby"; type="text/html"$'},
        is_exposed=False,
    ),
    AddedHeader(
        "WWW-Authenticate",
        "The scope's headers, one challenge each (RFC 9110 section 11.6.1), and Bearer (RFC 6750) for a token; any will do. An "
        "app that names its callers itself: Login.",
        {
            "type": "string",
            "pattern": '^(Login|(Bearer (realm|error)="[^"]+"|Header name="[^"]+")(, Header name="[^"]+")*)$',
        },
        is_exposed=False,
    ),
)
_FIELDS: Final = {each.name: each.name.lower().encode() for each in ADDED_HEADERS}


def field(name: str) -> bytes:
    """The name of the added header ``name`` as a field has it. Raises ``KeyError`` for one that isn't declared above."""
    return _FIELDS[name]


OURS: Final = tuple(field(each.name) for each in ADDED_HEADERS if each.is_ours)
ON_REPLAYS: Final = tuple(field(each.name) for each in ADDED_HEADERS if each.is_on_replays)
"""Fields of the above, by what holds for them."""


def header_object(name: str) -> dict[str, Any]:
    """The added header ``name`` as OpenAPI describes one, in an object of its own."""
    (found,) = (each for each in ADDED_HEADERS if each.name == name)
    return {"description": found.meaning, "schema": deepcopy(found.schema)}
