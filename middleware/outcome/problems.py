"""Problems (RFC 9457): the one place that makes an error answer. `oncegate.middleware.outcome.problem_kinds` has its words."""
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
from oncegate.middleware.outcome.problem_kinds import KINDS
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


RETRY_AFTER_SECONDS: Final = 1
_LINK: Final = field("Link")
_RETRY_AFTER: Final = field("Retry-After")
_REQUEST_ID: Final = field("X-Request-Id")
_CHALLENGE: Final = field("WWW-Authenticate")
MAX_VALUES: Final = 10_000
"""Commas and opening brackets of JSON that is read on the event loop."""
_INSIDE_VALUES: Final = bytes(set(range(256)) - set(b"[{,"))
MAX_ESCAPES: Final = 200_000
"""Characters that JSON has to escape, of a text that is written on the event loop."""
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
