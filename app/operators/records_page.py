"""``records/`` over HTTP, for operators with the token.

``GET records/?state=unknown&limit=100&cursor=...``, ``GET records/ID``, ``POST records/find`` with ``{"key", "caller"}`` (what is
secret is in the body, since URLs are logged on the way), ``POST records/ID/release`` and ``POST records/ID/resolve``.
"""

import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Literal, NamedTuple
from urllib.parse import parse_qs

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oncegate.app.operators.bearer import Bearer
from oncegate.app.operators.records import MOST_SECONDS, NotARecord, Records, response_to_keep
from oncegate.app.operators.reply import NOT_FOUND, Reply, method_not_allowed, problem, told
from oncegate.cache.errors import CacheError, RecordUnreadable
from oncegate.cache.record import State
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.http.asgi import Receive, Scope
from oncegate.middleware.http.body import read_body
from oncegate.middleware.rules.errors import KeyInvalid, PayloadTooLarge, RequestTimeout

log = logging.getLogger("oncegate.records")

MOST_BYTES = 8 * 1024 * 1024
"""Of a request: a resolution may bring a response's body."""
BODY_SECONDS = 30.0
_STATES = frozenset(state.value for state in State) - {State.ABSENT}
_CHALLENGE = (b"www-authenticate", b'Bearer realm="oncegate records"')

WHY_NOT = {
    Resolution.ABSENT: (404, "no such record"),
    Resolution.IN_FLIGHT: (
        409,
        "in flight: its owner is alive; only force does it, and its attempt runs on all the same",
    ),
    Resolution.SETTLED: (409, "its outcome is known: a record that succeeded or failed is left alone"),
    Resolution.OTHER_ATTEMPT: (409, "another attempt is there by now: look again"),
}
"""Why nothing was written, as a status and in words."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Find(_Strict):
    """A key, and its caller's header lines; ``None`` for every caller."""

    key: Annotated[str, Field(min_length=1, max_length=1000)]
    caller: list[str] | None = None


class Release(_Strict):
    """Release a key. ``attempt`` is the one that was seen."""

    force: bool = False
    attempt: Annotated[int, Field(ge=0)] = 0


class Outcome(Release):
    """An operator's resolution. ``ttl`` (seconds) is for how long it is kept; without, see `Records.resolve`."""

    outcome: Literal["succeeded", "failed"] = Field(alias="as")
    status: int | None = None
    headers: list[tuple[str, str]] = []
    body: str = ""
    body_encoding: Literal["text", "base64"] = "text"
    ttl: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = None


class RecordsPage:
    """Answers requests below ``records/``. Without the right token nothing is read."""

    def __init__(self, records: Records, operators: Bearer) -> None:
        self._records = records
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, path: str) -> Reply:
        """The answer to one request."""
        if not self._operators.is_brought(scope):
            self._operators.refuse(scope)
            return problem(401, "Unauthorized", "This needs the operators' bearer token.", _CHALLENGE)
        try:
            return await self._answer(scope, receive, path)
        except (NotARecord, KeyInvalid) as error:
            return problem(400, "Bad Request", str(error))
        except PayloadTooLarge as error:
            return problem(413, "Content Too Large", str(error))
        except RequestTimeout as error:
            return problem(408, "Request Timeout", str(error))
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return problem(400, "Bad Request", f"{where}: {first['msg']}".removeprefix(": "))
        except RecordUnreadable as error:
            return unreadable(path.partition("/")[0], error)
        except CacheError as error:
            log.warning("the cache is unavailable to an operator: %s", error)
            return problem(503, "Cache Unavailable", str(error), (b"retry-after", b"1"))

    async def _answer(self, scope: Scope, receive: Receive, path: str) -> Reply:
        identifier, _, action = ("", "", "") if path == "find" else path.partition("/")
        template = "/".join(part for part in ("{id}" if identifier else path, action) if part)
        if template not in OPERATIONS:
            return NOT_FOUND
        method, answer = OPERATIONS[template]
        if scope["method"] != method and not (scope["method"] == "HEAD" and method == "GET"):
            return method_not_allowed("GET, HEAD" if method == "GET" else method)
        body = await _body(receive) if method == "POST" else b""
        return await answer(self, _Asked(identifier, scope["query_string"], body))

    async def _list(self, asked: "_Asked") -> Reply:
        query = {name: values[-1] for name, values in parse_qs(asked.query.decode("latin-1")).items()}
        state, limit = query.get("state"), query.get("limit", "100")
        if state is not None and state not in _STATES:
            raise NotARecord(f"state is one of {', '.join(sorted(_STATES))}")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 6):
            raise NotARecord("limit is a number")
        listing = await self._records.listing(state, cursor=query.get("cursor", ""), limit=int(limit))
        return told({"records": listing.records, "cursor": listing.cursor})

    async def _show(self, asked: "_Asked") -> Reply:
        record = await self._records.show(asked.identifier)
        return _refused(Resolution.ABSENT) if record is None else told(record)

    async def _find(self, asked: "_Asked") -> Reply:
        which = Find.model_validate_json(asked.body)
        caller = None if which.caller is None else header_lines(which.caller)
        return told({"ids": await self._records.of_key(which.key, caller)})

    async def _release(self, asked: "_Asked") -> Reply:
        said = Release.model_validate_json(asked.body or b"{}")
        return await self._write(asked.identifier, ResolveRequest(None, force=said.force, attempt=said.attempt))

    async def _resolve(self, asked: "_Asked") -> Reply:
        said = Outcome.model_validate_json(asked.body)
        state = State.SUCCEEDED if said.outcome == "succeeded" else State.FAILED
        response = None
        if said.status is not None:
            content = said.body.encode()
            if said.body_encoding == "base64":
                content = _from_base64(said.body)
            response = response_to_keep(said.status, said.headers, content)
        elif state is State.SUCCEEDED or said.body or said.headers:
            raise NotARecord("status is missing: a success is answered with one, and so is whatever has a body")
        ttl_ms = 0 if said.ttl is None else max(1, round(said.ttl * 1000))
        resolve = ResolveRequest(state, response, ttl_ms, force=said.force, attempt=said.attempt)
        return await self._write(asked.identifier, resolve)

    async def _write(self, identifier: str, resolve: ResolveRequest) -> Reply:
        resolution = await self._records.resolve(identifier, resolve)
        if resolution is not Resolution.RESOLVED:
            return _refused(resolution)
        to = resolve.state.value if resolve.state else "absent"
        log.warning("record %s: resolved to %s by an operator%s", identifier, to, ", by force" if resolve.force else "")
        return told({"id": identifier, "resolution": resolution.value, "state": to})


class _Asked(NamedTuple):
    """One request: its record, the query, the body."""

    identifier: str
    query: bytes
    body: bytes


OPERATIONS: dict[str, tuple[str, Callable[[RecordsPage, _Asked], Awaitable[Reply]]]] = {
    "": ("GET", RecordsPage._list),
    "find": ("POST", RecordsPage._find),
    "{id}": ("GET", RecordsPage._show),
    "{id}/release": ("POST", RecordsPage._release),
    "{id}/resolve": ("POST", RecordsPage._resolve),
}
"""By the path below ``records/``: the method, and what answers. Each of them is described in openapi/oncegate.yaml."""


def header_lines(lines: Iterable[str]) -> list[tuple[bytes, bytes]]:
    """Header lines as a person writes them, ``Name: value``. Raises `NotARecord`, without quoting them."""
    fields = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise NotARecord("a caller is given by header lines: Authorization: Bearer ...")
        fields.append(
            (name.strip().lower().encode("utf-8", "replace"), value.strip(" \t").encode("utf-8", "surrogateescape"))
        )
    return fields


def unreadable(identifier: str, error: RecordUnreadable) -> Reply:
    """The answer where the record ``identifier``, or one that belongs to it, can't be read."""
    log.error("record %s: %s", identifier, error)
    reply = problem(500, "Record Unreadable", str(error))
    members = orjson.loads(reply.body) | {"code": "record-unreadable", "record": identifier}
    return Reply(reply.status, orjson.dumps(members), reply.content_type)


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise NotARecord("body is not base64") from None


async def _body(receive: Receive) -> bytes:
    return await read_body(receive, {}, MOST_BYTES, BODY_SECONDS) or b""


def _refused(resolution: Resolution) -> Reply:
    status, why = WHY_NOT[resolution]
    reply = problem(status, "Not Found" if status == 404 else "Conflict", why)
    members = orjson.loads(reply.body) | {"resolution": resolution.value}
    return Reply(status, orjson.dumps(members), reply.content_type)
