"""Problems (RFC 9457): the one place that knows statuses, titles and the form of an error answer."""
# Compiled: docs/decisions/0012-compiled.md

from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson

from oncegate.cache.fields import fields_of
from oncegate.cache.record import StoredResponse
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.rules.headers.added_headers import field


@dataclass(slots=True, init=False)  # as a `Record`: every replay makes one
class Answer:
    """A response that the middleware makes itself. Header names are in lower case.

    ``lines`` are headers too, as HTTP/1.1 sends them, each behind a CRLF: they come before the others.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    lines: bytes

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, lines: bytes = b"") -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.lines = lines

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers, with those that are there as ``lines``."""
        return [*fields_of(self.lines), *self.headers] if self.lines else self.headers


INVALID_REQUEST: Final = "invalid_request_error"
IDEMPOTENCY: Final = "idempotency_error"
FAULT: Final = "api_error"


@dataclass(frozen=True, slots=True)
class _Kind:
    """A problem's status, and all of its words.

    ``meaning`` is for descriptions of the API. ``detail`` is what one says that has no words of its own; ``passing``: the same
    where the request is not under enforcement. ``unless``: when ``retryable`` is otherwise, as the documentation says it.
    """

    status: int
    title: str
    meaning: str
    retryable: bool
    error_type: str
    """The ``type`` for SDKs that look for a member ``error``: theirs are the three above."""
    retry_after: bool = False
    """Whether time alone may change the answer: layers that retry every 409 go by it. Never where ``retryable`` may be false."""
    unless: str = ""
    detail: str = ""
    passing: str = ""


KINDS: dict[str, _Kind] = {
    # 400, 409 and 422 and the first two titles are the draft's, section 2.7.
    "key-missing": _Kind(
        400,
        "Idempotency-Key is missing",
        "The route requires a key and the request has none.",
        retryable=False,
        error_type=IDEMPOTENCY,
    ),
    "key-invalid": _Kind(
        400,
        "Idempotency-Key is invalid",
        "The key is empty, too long, malformed, given twice, of another form than the route wants, or differs between the header "
        "and an alias.",
        retryable=False,
        error_type=IDEMPOTENCY,
    ),
    "aggregate-invalid": _Kind(
        400,
        "The aggregate can't be told",
        "The route numbers its commands by aggregate, and the request doesn't say which one it is about.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "version-invalid": _Kind(
        400,
        "The expected version is invalid",
        "What says which version is expected is malformed, or there is more than one such field.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "caller-missing": _Kind(
        401,
        "The caller is not identified",
        "The route needs to know its caller and none of the scope's headers is there.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "caller-invalid": _Kind(
        401,
        "The caller's token does not hold",
        "The token that names the caller is expired, forged, malformed, or somebody else's.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "request-timeout": _Kind(
        408,
        "The request did not arrive in time",
        "The body did not arrive in time. Nothing was executed.",
        retryable=True,
        error_type=INVALID_REQUEST,
    ),
    "key-reused": _Kind(
        422,
        "Idempotency-Key is already used",
        "The key was used for another method, path, query or payload.",
        retryable=False,
        error_type=IDEMPOTENCY,
        detail="This key was used for a request with another method, path, query or payload: use a new key.",
    ),
    "in-flight": _Kind(
        409,
        "A request is outstanding for this Idempotency-Key",
        "The first request with this key is still being executed.",
        retryable=True,
        error_type=IDEMPOTENCY,
        retry_after=True,
        detail="The first request with this key is still being executed: try again later, or send Prefer: wait.",
    ),
    "duplicate": _Kind(
        409,
        "A request with this Idempotency-Key was already processed",
        "An error was asked for in place of a replay, or the result is too large to be replayed.",
        retryable=False,
        error_type=IDEMPOTENCY,
        detail="A request with this key was already processed: its result is in original_result.",
    ),
    "outcome-unknown": _Kind(
        409,
        "The outcome of an earlier request is unknown",
        "An earlier attempt may or may not have been executed, and the policy is not to try again.",
        retryable=False,
        error_type=IDEMPOTENCY,
        detail="An earlier request with this key may or may not have been executed: find out before sending another.",
    ),
    "version-conflict": _Kind(
        409,
        "The aggregate has another version",
        "The aggregate has another version than Expected-Version says. Nothing was accepted.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "precondition-failed": _Kind(
        412,
        "The aggregate has another version",
        "The aggregate has another version than If-Match or If-None-Match says. Nothing was accepted.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "too-many-keys": _Kind(
        429,
        "The caller sends too much at once",
        "The caller has as many attempts running, or has used as many new keys, as it may. Nothing was claimed.",
        retryable=True,
        error_type=INVALID_REQUEST,
        retry_after=True,
    ),
    "payload-too-large": _Kind(
        413,
        "The request is too large",
        "The body is over max_request_body.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "precondition-required": _Kind(
        428,
        "The expected version is missing",
        "The route requires the version that is expected.",
        retryable=False,
        error_type=INVALID_REQUEST,
    ),
    "record-unreadable": _Kind(
        500,
        "The record of this Idempotency-Key can't be read",
        "The record is damaged, or of a newer version.",
        retryable=False,
        error_type=FAULT,
        detail="The record of this key is damaged, or of a newer version of oncegate.",
    ),
    "caller-failed": _Kind(
        500,
        "The caller can't be determined",
        "An app's own function that names its callers failed. Nothing was claimed.",
        retryable=False,
        error_type=FAULT,
    ),
    "gateway-failed": _Kind(
        500,
        "The gateway failed",
        (
            "A fault of the gateway's own: the request may have been executed. retryable is true where "
            "on_unknown is retry, and for an idempotent method that was not enforced."
        ),
        retryable=False,
        error_type=FAULT,
        unless='yes under `on_unknown = "retry"`',
        detail="The gateway failed: the outcome of the request is unknown.",
        passing="The gateway failed; the request may have been processed.",
    ),
    "upgrade-unsupported": _Kind(
        501,
        "Upgrade is not supported",
        "Upgrade (WebSocket) is not forwarded.",
        retryable=False,
        error_type=INVALID_REQUEST,
        detail="This gateway forwards plain HTTP requests only.",
    ),
    "upstream-unreachable": _Kind(
        502,
        "The upstream can't be reached",
        "No connection: nothing was sent, and the key is free.",
        retryable=True,
        error_type=FAULT,
        detail="No connection to the upstream. Nothing was executed; the key is free.",
        passing="No connection to the upstream: nothing was sent.",
    ),
    "upstream-failed": _Kind(
        502,
        "The upstream did not answer",
        "The connection broke after the request was sent. retryable is true where on_unknown is retry.",
        retryable=False,
        error_type=FAULT,
        unless='yes under `on_unknown = "retry"`',
        detail="The connection broke after the request was sent: its outcome is unknown.",
        passing="The connection to the upstream broke after the request was sent; it may have been processed.",
    ),
    "cache-unavailable": _Kind(
        503,
        "The record cache is unavailable",
        "The record cache can't be reached. Nothing was forwarded.",
        retryable=True,
        error_type=FAULT,
        retry_after=True,
        detail="The record cache can't be reached. Nothing was executed.",
    ),
    "caller-unverifiable": _Kind(
        503,
        "The caller's token can't be verified now",
        "The keys that the caller's token is verified with can't be had. Nothing was claimed.",
        retryable=True,
        error_type=FAULT,
        retry_after=True,
    ),
    "overloaded": _Kind(
        503,
        "Too many requests are being executed",
        "Too many attempts are in flight. Nothing was claimed.",
        retryable=True,
        error_type=FAULT,
        retry_after=True,
    ),
    "upstream-timeout": _Kind(
        504,
        "The upstream did not answer in time",
        (
            "No response in time; the attempt goes on. retryable is false for what was not enforced and is not "
            "idempotent."
        ),
        retryable=True,
        error_type=FAULT,
        unless="no for a request that was not enforced and is not idempotent",
        detail="The upstream has not answered yet; the attempt goes on: ask again with the same key.",
        passing="The upstream did not answer in time; the request may have been processed.",
    ),
}
"""Every problem that oncegate answers with, by its slug. Public: a change here is a change of the contract."""

RETRY_AFTER_SECONDS: Final = 1
_LINK: Final = field("Link")
_RETRY_AFTER: Final = field("Retry-After")
_REQUEST_ID: Final = field("X-Request-Id")
_CHALLENGE: Final = field("WWW-Authenticate")
MAX_VALUES: Final = 10_000
_INSIDE_VALUES: Final = bytes(set(range(256)) - set(b"[{,"))
MAX_ESCAPES: Final = 200_000
_UNESCAPED: Final = bytes(set(range(0x20, 256)) - set(b'"\\'))


def problem(
    slug: str,
    detail: str = "",
    *,
    docs_url: str,
    key: str | None = None,
    record: str | None = None,
    request_id: str = "",
    retryable: bool | None = None,
    extra: dict[str, Any] | None = None,
    retry_after: int = RETRY_AFTER_SECONDS,
) -> Answer:
    """The problem ``slug`` as a response. ``detail`` and ``retryable`` override the table's; ``extra`` adds members.

    ``request_id`` is the id of the request that it answers (`oncegate.middleware.rules.headers.request_id`).
    """
    kind = KINDS[slug]
    detail = detail or kind.detail
    identifier, page = problem_type(slug, docs_url)
    members: dict[str, Any] = {
        "type": identifier,
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
    if request_id:
        members["request_id"] = request_id
    body = orjson.dumps(members | (extra or {}))
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if request_id:
        headers.append((_REQUEST_ID, request_id.encode("ascii")))
    if page:
        headers.append((_LINK, b'<%b>; rel="describedby"; type="text/html"' % page.encode()))
    if kind.retry_after:
        headers.append((_RETRY_AFTER, b"%d" % retry_after))
    return Answer(kind.status, headers, body)


def problem_type(slug: str, docs_url: str) -> tuple[str, str]:
    """The URI that identifies the problem ``slug``, and the page about it, which is empty where nobody has named one."""
    if not docs_url:
        return f"urn:oncegate:problem:{slug}", ""
    if docs_url.endswith("/"):
        page = docs_url + slug
        return page, page
    return f"{docs_url}#{slug}", docs_url


def error_member(error_type: str, code: str, message: str) -> dict[str, str]:
    """The member ``error`` of a problem: without it, SDKs of a well-known family take the answer for a success."""
    return {"type": error_type, "code": code, "message": message}


LOGIN: Final = (_CHALLENGE, b"Login")
"""The challenge of an app that names its callers itself: how they log in, it knows alone."""
INVALID_TOKEN: Final = (_CHALLENGE, b'Bearer error="invalid_token"')
"""The challenge to a token that does not hold (RFC 6750 section 3)."""


def challenge(names: Iterable[bytes], *, token: bool = False) -> tuple[bytes, bytes]:
    """The challenges that a 401 must carry (RFC 9110 section 15.5.2): one for each header by which callers are distinguished,
    and with ``token`` one for a token that names the caller.

    Any of them will do. Its value's scheme is known to the upstream alone: so this names the header, in a
    scheme that browsers don't know and put no question about to their users.
    """
    headers = [b'Header name="%b"' % name for name in names]
    return _CHALLENGE, b", ".join([b'Bearer realm="oncegate"', *headers] if token else headers)


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
