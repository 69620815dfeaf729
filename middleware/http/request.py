"""Reads from an HTTP request its key, scope and preferences, and its body, whole or not at all."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable
from time import monotonic
from typing import Final
from uuid import uuid4

from oncegate.middleware.admission.within import within
from oncegate.middleware.http.asgi import Message, Receive
from oncegate.middleware.http.prefer import preferences
from oncegate.middleware.rules.errors import CallerMissing, KeyMissing, PayloadTooLarge, RequestTimeout
from oncegate.middleware.rules.key import Fields, parse_key, read_key, scope_parts
from oncegate.middleware.rules.policy import CONTENT_LENGTH, COOKIE, PREFER, RAISE_HEADER, Policy

_SIGNED: Final = (b"AWS4-", b"OAuth ", b"HMAC", b"Digest ", b"Signature ")
"""Authorization schemes whose value changes with each request."""
_SIGNED_INITIALS: Final = frozenset(scheme[:1] for scheme in _SIGNED)

_COOKIE_ALONE: Final = (
    "The request has a Cookie and no Authorization, so that two sessions with one key would get each other's responses. Send "
    'Authorization, or have the operator set scope: to the header that names the caller (["header:Cookie"] for the cookies '
    'themselves), or to ["header:Authorization"] if all who send none are one caller.'
)


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
    if policy.settings.require_key:
        raise KeyMissing(f"This operation requires the header {policy.settings.header}.")
    if policy.settings.generate_key:
        key = str(uuid4())
        return key, b'"%b"' % key.encode(), True
    return None


def request_scope(fields: Fields, policy: Policy, *, generated: bool = False) -> list[bytes] | None:
    """The caller's scope. Raises `CallerMissing`. ``generated``: the key was made here, so no other caller has it."""
    parts = scope_parts(fields, policy.scope_names)
    if parts is not None:
        return parts
    if policy.settings.require_scope:
        names = ", ".join(name.decode() for name in policy.scope_names)
        raise CallerMissing(f"This operation needs to know its caller: send {names}.")
    if policy.refuses_cookies and COOKIE in fields and not generated:
        raise CallerMissing(_COOKIE_ALONE)
    return None


def is_signed(fields: Fields) -> bool:
    """Whether the Authorization header is of a scheme that signs each request, and so names a new caller each time."""
    values = fields.get(b"authorization")
    return values is not None and values[0][:1] in _SIGNED_INITIALS and values[0].startswith(_SIGNED)


def wanted_wait(fields: Fields, policy: Policy) -> int:
    """Seconds to wait for a concurrent request: ``Prefer: wait=N`` (RFC 7240 section 4.3), capped by ``max_wait``."""
    lines = fields.get(PREFER)
    if lines is None:  # as a rule
        return 0
    for name, value in preferences(lines):
        if name == b"wait" and value.isdigit():
            seconds = value.lstrip(b"0")[:9]  # of any length: int() takes thousands of digits badly, or not at all
            return min(int(seconds or 0), int(policy.settings.max_wait))
    return 0


def wants_async(fields: Fields) -> bool:
    """Whether the caller would have the command accepted now and processed later: ``Prefer: respond-async``
    (RFC 7240 section 4.1)."""
    lines = fields.get(PREFER)
    return lines is not None and (b"respond-async", b"") in preferences(lines)


def wants_error(fields: Fields, policy: Policy) -> bool:
    """Whether a duplicate is to be answered with an error: by the route, or by the request's header."""
    lines = fields.get(RAISE_HEADER)
    if lines is None:
        return policy.raise_on_duplicate
    return policy.raise_on_duplicate or lines[0].strip().lower() in (b"?1", b"1", b"true")


def _uncounted(_: int) -> None:
    pass


async def read_body(
    receive: Receive, fields: Fields, limit: int, timeout: float, hold: Callable[[int], None] = _uncounted
) -> bytes | None:
    """The whole body, or ``None`` where the client left before its last chunk: then there was no request.

    Raises `PayloadTooLarge` beyond ``limit`` bytes (at once where Content-Length says so), `RequestTimeout`, and what ``hold``
    raises, which is called with the size of each piece of a body that comes in several.
    """
    declared = fields.get(CONTENT_LENGTH)
    if declared is not None and declared[0].isdigit() and int(declared[0][:20]) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    began = monotonic()
    try:
        message = await within(timeout, receive())
        if not message.get("more_body", False):  # as a rule
            return None if message["type"] == "http.disconnect" else _chunk(message, 0, limit)
        return await within(max(0.0, timeout - (monotonic() - began)), _whole(message, receive, limit, hold))
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {timeout:g} seconds.") from None


async def _whole(message: Message, receive: Receive, limit: int, hold: Callable[[int], None]) -> bytes | None:
    """The body that begins with ``message``, which is not all of it."""
    chunks: list[bytes] = []
    size = 0
    while message["type"] != "http.disconnect":
        chunk = _chunk(message, size, limit)
        hold(len(chunk))
        chunks.append(chunk)
        size += len(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()
    return None


def _chunk(message: Message, size: int, limit: int) -> bytes:
    """The chunk of ``message``. Raises `PayloadTooLarge` where it goes beyond ``limit``, after ``size`` bytes before it."""
    chunk = message.get("body", b"")
    if not isinstance(chunk, bytes):  # middleware in front may give a bytearray
        chunk = bytes(chunk)
    if size + len(chunk) > limit:
        raise PayloadTooLarge(f"The body is larger than {limit} bytes.")
    return chunk


class BodyAgain:
    """ASGI ``receive`` for a request whose body was read already: all of it, then what comes after it."""

    __slots__ = ("_body", "_receive")

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def receive(self) -> Message:
        """The next message."""
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}
