"""The identity of a request: its key, a caller without a name, and warnings where what callers send doesn't name them."""
# Compiled: docs/decisions/0012-compiled.md

import logging
from typing import Final
from uuid import uuid4

from oncegate.middleware.rules.errors import CallerMissing, CookieAlone, KeyMissing
from oncegate.middleware.rules.keys.key import Fields, parse_key, read_key
from oncegate.middleware.rules.policy import COOKIE, Policy

log = logging.getLogger("oncegate.http")

_JWT: Final = b"Bearer eyJ"
"""How a token begins that is a JWT: a refresh makes another one of it."""
_BEARER: Final = b"Bearer "
_SIGNED: Final = (b"AWS4-", b"OAuth ", b"HMAC", b"Digest ", b"Signature ")
"""How Authorization begins whose value changes with each request."""
SIGNATURES_CHANGE: Final = (
    "Authorization changes with each request here (a signing scheme), so that no retry meets its own record: "
    "set scope to a header that names the caller"
)
TOKENS_CHANGE: Final = (
    "Authorization changes with each token here (a JWT), so that a retry with a refreshed one is executed again: "
    'scope = ["jwt:iss", "jwt:sub"] and [jwt] name the caller by what stays'
)
COOKIES_ALONE: Final = (
    "callers come with a Cookie and no Authorization, and are refused (401 caller-missing), since two sessions with one key "
    "would get each other's responses: "
    'set scope to the header that names the caller (["header:Cookie"] for the cookies themselves), '
    'or to ["header:Authorization"] if all who send none are one caller; in an app, caller= knows who is logged in'
)
"""A line in the log, once, for who runs it. The caller is a stranger, whose answer names nothing of this."""


def request_key(fields: Fields, policy: Policy) -> tuple[str, bytes, bool] | None:
    """The key, the field value to echo, and whether the gateway made it; ``None``: not under enforcement.

    Raises `KeyMissing` or `KeyInvalid`.
    """
    names = policy.key_names
    if len(names) == 1:  # as a rule
        lines = fields.get(names[0])
        if lines is None and policy.needs_no_key:
            return None
        if lines is not None and len(lines) == 1:
            return parse_key(lines[0]), lines[0], False
    found = read_key(fields, names)
    if found is not None:
        return *found, False
    if policy.needs_no_key:
        return None
    if policy.generates_key:
        key = str(uuid4())
        return key, b'"%b"' % key.encode(), True
    raise KeyMissing(f"This operation requires the header {policy.settings.header}.")


def warned_of(authorization: bytes) -> bool:
    """Log a warning about an ``Authorization`` that is another one with each request, or each token; false: it stays."""
    if authorization.startswith(_BEARER):
        if not authorization.startswith(_JWT):
            return False
        log.warning(TOKENS_CHANGE)
        return True
    if not authorization.startswith(_SIGNED):
        return False
    log.warning(SIGNATURES_CHANGE)
    return True


def nameless_scope(fields: Fields, policy: Policy, generated: bool = False) -> list[bytes] | None:
    """The scope of a caller without a name: ``None``. Raises `CallerMissing` where one is needed.

    ``generated``: the key was made here, so no other caller has it.
    """
    if policy.settings.require_scope:
        names = ", ".join(name.decode() for name in policy.caller_headers)
        raise CallerMissing(f"This operation needs to know its caller: send {names}.")
    if policy.refuses_cookies and COOKIE in fields and not generated:
        raise CookieAlone(
            "This operation needs to know its caller, and a Cookie does not name one: send Authorization."
        )
    return None
