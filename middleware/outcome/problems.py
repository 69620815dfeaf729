"""Problems (RFC 9457): the one place that knows statuses, titles and the form of an error answer."""
# Compiled: docs/decisions/0012-compiled.md

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson

from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.instants import instant


@dataclass(slots=True, init=False)  # as a `Record`: every replay makes one
class Answer:
    """A response that the middleware makes itself. Header names are in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


INVALID_REQUEST: Final = "invalid_request_error"
IDEMPOTENCY: Final = "idempotency_error"
FAULT: Final = "api_error"


@dataclass(frozen=True, slots=True)
class _Kind:
    status: int
    title: str
    retryable: bool
    error_type: str
    """Of the family of SDKs that look for a member ``error``: theirs are the three above."""
    retry_after: bool = False
    """Whether time alone may change the answer: layers that retry every 409 go by it. Never where ``retryable`` may be false."""


KINDS: dict[str, _Kind] = {
    # 400, 409 and 422 and the first two titles are the draft's, section 2.7.
    "key-missing": _Kind(400, "Idempotency-Key is missing", False, IDEMPOTENCY),
    "key-invalid": _Kind(400, "Idempotency-Key is invalid", False, IDEMPOTENCY),
    "aggregate-invalid": _Kind(400, "The aggregate can't be told", False, INVALID_REQUEST),
    "version-invalid": _Kind(400, "The expected version is invalid", False, INVALID_REQUEST),
    "caller-missing": _Kind(401, "The caller is not identified", False, INVALID_REQUEST),
    "caller-invalid": _Kind(401, "The caller's token does not hold", False, INVALID_REQUEST),
    "request-timeout": _Kind(408, "The request did not arrive in time", True, INVALID_REQUEST),
    "key-reused": _Kind(422, "Idempotency-Key is already used", False, IDEMPOTENCY),
    "in-flight": _Kind(409, "A request is outstanding for this Idempotency-Key", True, IDEMPOTENCY, retry_after=True),
    "duplicate": _Kind(409, "A request with this Idempotency-Key was already processed", False, IDEMPOTENCY),
    "outcome-unknown": _Kind(409, "The outcome of an earlier request is unknown", False, IDEMPOTENCY),
    "version-conflict": _Kind(409, "The aggregate has another version", False, INVALID_REQUEST),
    "precondition-failed": _Kind(412, "The aggregate has another version", False, INVALID_REQUEST),
    "too-many-keys": _Kind(429, "The caller sends too much at once", True, INVALID_REQUEST, retry_after=True),
    "payload-too-large": _Kind(413, "The request is too large", False, INVALID_REQUEST),
    "precondition-required": _Kind(428, "The expected version is missing", False, INVALID_REQUEST),
    "record-unreadable": _Kind(500, "The record of this Idempotency-Key can't be read", False, FAULT),
    "caller-failed": _Kind(500, "The caller can't be determined", False, FAULT),
    "gateway-failed": _Kind(500, "The gateway failed", False, FAULT),
    "upgrade-unsupported": _Kind(501, "Upgrade is not supported", False, INVALID_REQUEST),
    "upstream-unreachable": _Kind(502, "The upstream can't be reached", True, FAULT),
    "upstream-failed": _Kind(502, "The upstream did not answer", False, FAULT),
    "cache-unavailable": _Kind(503, "The record cache is unavailable", True, FAULT, retry_after=True),
    "caller-unverifiable": _Kind(503, "The caller's token can't be verified now", True, FAULT, retry_after=True),
    "overloaded": _Kind(503, "Too many requests are being executed", True, FAULT, retry_after=True),
    "upstream-timeout": _Kind(504, "The upstream did not answer in time", True, FAULT),
}
"""Every problem that oncegate answers with, by its slug. Public: a change here is a change of the contract."""

RETRY_AFTER_SECONDS: Final = 1
MAX_VALUES: Final = 10_000
_INSIDE_VALUES: Final = bytes(set(range(256)) - set(b"[{,"))
MAX_ESCAPES: Final = 200_000
_UNESCAPED: Final = bytes(set(range(0x20, 256)) - set(b'"\\'))


def problem(
    slug: str,
    detail: str,
    *,
    docs_url: str,
    key: str | None = None,
    record: str | None = None,
    retryable: bool | None = None,
    extra: dict[str, Any] | None = None,
    retry_after: int = RETRY_AFTER_SECONDS,
) -> Answer:
    """The problem ``slug`` as a response. ``retryable`` overrides the table's; ``extra`` adds members."""
    kind = KINDS[slug]
    members: dict[str, Any] = {
        "type": f"{docs_url}#{slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": slug,
        "retryable": kind.retryable if retryable is None else retryable,
        "error": error_member(kind.error_type, slug, detail),
    }
    if key is not None:
        members["idempotency_key"] = key
    if record is not None:
        members["record"] = record
    body = orjson.dumps(members | (extra or {}))
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"link", b'<%b>; rel="describedby"; type="text/html"' % docs_url.encode()),
    ]
    if kind.retry_after:
        headers.append((b"retry-after", b"%d" % retry_after))
    return Answer(kind.status, headers, body)


def error_member(error_type: str, code: str, message: str) -> dict[str, str]:
    """The member ``error`` of a problem: without it, SDKs of a well-known family take the answer for a success."""
    return {"type": error_type, "code": code, "message": message}


LOGIN: Final = (b"www-authenticate", b"Login")
"""The challenge of an app that names its callers itself: how they log in, it knows alone."""
INVALID_TOKEN: Final = (b"www-authenticate", b'Bearer error="invalid_token"')
"""The challenge to a token that does not hold (RFC 6750 section 3)."""


def challenge(names: Iterable[bytes], *, token: bool = False) -> tuple[bytes, bytes]:
    """The challenges that a 401 must carry (RFC 9110 section 15.5.2): one for each header by which callers are distinguished,
    and with ``token`` one for a token that names the caller.

    Any of them will do. Its value's scheme is known to the upstream alone: so this names the header, in a
    scheme that browsers don't know and put no question about to their users.
    """
    headers = [b'Header name="%b"' % name for name in names]
    return b"www-authenticate", b", ".join([b'Bearer realm="oncegate"', *headers] if token else headers)


def original_result(response: StoredResponse | None) -> dict[str, Any]:
    """A stored response as a member of a `duplicate` problem: its body as a JSON value, else text, else base64.

    JSON with more than `MAX_VALUES` commas and opening brackets is text, and text with more than `MAX_ESCAPES` characters that
    JSON has to escape is base64: each takes its time on the event loop.
    A JSON body goes in as it is spelled, so that no digit of a number is lost. Without a stored body: ``body_omitted``.
    ``completed_at`` is ``None`` where it isn't known.
    """
    if response is None:
        return {"body_omitted": True}
    result: dict[str, Any] = {
        "status": response.status,
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in response.headers],
        "completed_at": instant(response.completed_at_ms),
    }
    if response.body is None:
        return result | {"body_omitted": True}
    if _is_json(response.body):
        return result | {"body": orjson.Fragment(response.body)}
    try:
        if not _is_mostly_escapes(response.body):
            return result | {"body": response.body.decode()}
    except UnicodeDecodeError:
        pass
    return result | {"body": b64encode(response.body).decode(), "body_encoding": "base64"}


def _is_mostly_escapes(body: bytes) -> bool:
    return len(body) > MAX_ESCAPES and len(body.translate(None, _UNESCAPED)) > MAX_ESCAPES


def _is_json(body: bytes) -> bool:
    """Whether it is JSON, of no more values than can be read on the event loop: each takes up to 200 ns."""
    if len(body) > MAX_VALUES and len(body.translate(None, _INSIDE_VALUES)) > MAX_VALUES:
        return False
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def plain_error() -> tuple[int, bytes, bytes]:
    """Status, content type and body that stand for an exception out of an in-process app."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return status.value, b"text/plain; charset=utf-8", status.phrase.encode()
