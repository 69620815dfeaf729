"""A client of these pages, for the command line: a gateway's records over HTTP, with the methods of `Records`, and its rules."""

import http.client
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

import orjson
from pydantic import BaseModel, ValidationError

from oncegate.app.operators.audit import Author
from oncegate.app.operators.pages.described.gateway import DecisionList, ReloadedShape
from oncegate.app.operators.pages.described.policy import PolicyShape
from oncegate.app.operators.pages.described.record import (
    AuditList,
    NewestRecords,
    RecordIds,
    RecordList,
    Resolved,
    UnknownChanged,
    WholeRecord,
)
from oncegate.app.operators.pages.described.refusal import RefusedList
from oncegate.app.operators.pages.described.standing import ProcessList, SettingList
from oncegate.app.operators.records.newest import Chosen
from oncegate.app.operators.records.records import NotARecord
from oncegate.app.operators.records.unknown_changes import UnknownAt
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.outcome.responses import now_ms

SECONDS = 30.0
"""The time-out for a gateway's whole answer."""
_MOST_BYTES = 256 * 1024 * 1024
"""The most bytes of an answer; larger than any record that is kept."""
PREFIX = "/_oncegate"


class _NotWritten(BaseModel):
    resolution: Literal["absent", "in-flight", "settled", "other-attempt"]


class _Problem(BaseModel):
    """The answer to any refused request, as far as it is relied on: a newer gateway may have other problems."""

    title: str
    status: int
    detail: str | None = None


class GatewayError(Exception):
    """The gateway did not answer, or refused. The text is one line for the operator."""


class RemoteGateway:
    """The gateway at ``url``, with the operators' ``token``, if there is one. A path in the URL is the gateway's ``prefix``.

    Redirects are not followed and proxies not used: the token goes nowhere else. Raises ``ValueError`` for a bad URL.
    """

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError("--gateway is a URL without credentials: http://127.0.0.1:8080")
        if not _is_plain(url):
            raise ValueError("--gateway: this can't be a URL")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/") or PREFIX
        self._token = token

    async def reload(self) -> dict[str, Any]:
        """Have it read its configuration anew. Raises `GatewayError` where it doesn't, or nothing was changed."""
        return self._document("POST", "reload/", ReloadedShape)

    async def audit(self, *, limit: int, operator: str | None) -> dict[str, Any]:
        """See `oncegate.app.operators.audit_lines.AuditLines.listing`. Raises `GatewayError`."""
        query = {"limit": str(limit)} | ({} if operator is None else {"operator": operator})
        return self._document("GET", "audit/?" + urlencode(query), AuditList)

    async def decisions(self, minutes: int) -> dict[str, Any]:
        """The gateway's decisions of the last ``minutes``. Raises `GatewayError`."""
        return self._document("GET", f"decisions/?minutes={minutes}", DecisionList)

    async def callers(self, minutes: int, limit: int) -> dict[str, Any]:
        """Whom it refused in the last ``minutes``, ``limit`` callers at most. Raises `GatewayError`."""
        return self._document("GET", f"callers/?minutes={minutes}&limit={limit}", RefusedList)

    async def processes(self) -> dict[str, Any]:
        """See `oncegate.app.operators.heartbeats.processes`. Raises `GatewayError`."""
        return self._document("GET", "processes/", ProcessList)

    async def settings(self) -> dict[str, Any]:
        """The settings in effect there. Raises `GatewayError`."""
        return self._document("GET", "settings/", SettingList)

    async def policy(self) -> dict[str, Any]:
        """The rules that it publishes. Raises `GatewayError`."""
        return self._document("GET", "policy", PolicyShape)

    async def listing(self, state: str | None, *, cursor: str, limit: int) -> dict[str, Any]:
        """See `Records`."""
        query = {"cursor": cursor, "limit": str(limit), **({"state": state} if state else {})}
        return self._fetch("GET", "?" + urlencode(query), RecordList)

    async def newest(self, chosen: Chosen, *, cursor: str, limit: int, most: int) -> dict[str, Any]:
        """See `oncegate.app.operators.records.newest.newest`."""
        query: list[tuple[str, str]] = [
            ("order", "newest"),
            ("cursor", cursor),
            ("limit", str(limit)),
            ("scan", str(most)),
        ]
        query += [(name, text) for name, text in (("state", chosen.state), ("route", chosen.route)) if text is not None]
        query += [("caller", digest) for digest in sorted(chosen.callers or ())]
        if chosen.since_ms:
            query.append(("since", str(max(1.0, (now_ms() - chosen.since_ms) / 1000))))
        return self._fetch("GET", "?" + urlencode(query), NewestRecords)

    async def show(self, identifier: str, *, response: bool = False) -> dict[str, Any] | None:
        """See `Records`; the gateway reports that a ``response`` was shown."""
        record = self._fetch("GET", quote(identifier, safe=":") + ("?response=true" if response else ""), WholeRecord)
        return None if record.get("resolution") == Resolution.ABSENT else record

    async def of_key(self, key: str | None, caller: Sequence[str] | None) -> Sequence[str]:
        """See `Records`."""
        which = {"caller": caller} if key is None else {"key": key, "caller": caller}
        return list(self._fetch("POST", "find", RecordIds, which)["ids"])

    async def resolve(self, identifier: str, resolve: ResolveRequest, author: Author) -> Resolution:
        """See `Records`; the author's name is the one that the gateway knows by the token."""
        members: dict[str, Any] = {"force": resolve.force, "attempt": resolve.attempt} | _finding(resolve)
        if author.reason:  # an older gateway doesn't take one
            members["reason"] = author.reason
        action = "release" if resolve.state is None else "resolve"
        answer = self._fetch("POST", f"{quote(identifier, safe=':')}/{action}", Resolved, members)
        return Resolution(answer["resolution"])

    async def change_unknown(
        self, which: UnknownAt, resolve: ResolveRequest, author: Author, *, until: str, cursor: str, dry_run: bool
    ) -> dict[str, Any]:
        """See `oncegate.app.operators.records.unknown_changes.change_unknown`. What was unknown ``until`` when is by the
        gateway's clock: its first answer, to none, says it.
        """
        members: dict[str, Any] = {"reason": author.reason, "cursor": cursor, "dry_run": dry_run} | _finding(resolve)
        given = {"route": which.route, "since": which.since, "older": which.older, "until": until}
        members |= {name: value for name, value in given.items() if value}
        if which.callers is not None:
            members["caller"] = sorted(which.callers)
        action = "release" if resolve.state is None else "resolve"
        return self._fetch("POST", f"unknown/{action}", UnknownChanged, members)

    def _document(self, method: str, path: str, shape: type[BaseModel]) -> dict[str, Any]:
        status, content = self._exchange(method, path, None)
        try:
            if status == 200:
                shape.model_validate_json(content)
                document: dict[str, Any] = orjson.loads(content)
                return document
            refusal = _Problem.model_validate_json(content)
        except ValidationError:
            raise GatewayError(f"that is no gateway's {path}: it answered {status}") from None
        if status == 409:
            raise GatewayError(f"nothing was changed: {_printable(refusal)}")
        raise GatewayError(f"the gateway answered {status}: {_printable(refusal)}")

    def _fetch(
        self, method: str, path: str, shape: type[BaseModel], members: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The gateway's answer in ``shape``, also to a change that it refused. Raises `GatewayError`, `NotARecord`."""
        status, content = self._exchange(method, f"records/{path}", members)
        about_a_record = status == 409 or (status == 404 and b'"resolution"' in content)
        if status != 200 and not about_a_record:
            raise _refused(status, content)
        try:
            (_NotWritten if about_a_record else shape).model_validate_json(content)
        except ValidationError:
            raise GatewayError(f"that is no gateway's records/: it answered {status}") from None
        document: dict[str, Any] = orjson.loads(content)
        return document

    def _exchange(self, method: str, path: str, members: dict[str, Any] | None) -> tuple[int, bytes]:
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=SECONDS, context=self._tls)
            if self._tls is not None
            else http.client.HTTPConnection(self._host, self._port, timeout=SECONDS)
        )
        try:
            body = None if members is None else orjson.dumps(members)
        except TypeError:  # lone surrogates: what came in was no UTF-8
            raise NotARecord("what is sent to a gateway has to be UTF-8 text") from None
        try:
            credential = f"Bearer {self._token}".encode("utf-8", "surrogateescape")  # as the gateway reads it
            headers: dict[str, str | bytes] = {"Content-Type": "application/json"}
            if self._token:
                headers["Authorization"] = credential
            connection.connect()
            with _bounded(connection.sock) as over:
                connection.request(method, f"{self._prefix}/{path}", body, headers)
                answer = connection.getresponse()
                content = answer.read(_MOST_BYTES)
            if over.is_set():  # what came may have no end of its own
                raise TimeoutError("its answer did not end in time")
            return answer.status, content
        except (OSError, http.client.HTTPException) as error:
            raise GatewayError(f"the gateway did not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()


def _finding(resolve: ResolveRequest) -> dict[str, Any]:
    """The members of a document that say what became of it; none for a release."""
    if resolve.state is None:
        return {}
    members: dict[str, Any] = {"as": resolve.state.value}
    if resolve.ttl_ms:
        members["ttl"] = resolve.ttl_ms / 1000
    if resolve.response is not None:
        response = resolve.response
        members["status"] = response.status
        members["headers"] = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in response.headers
            if name != b"content-length"
        ]
        members |= {"body": b64encode(response.body or b"").decode(), "body_encoding": "base64"}
    return members


@contextmanager
def _bounded(connection: socket.socket) -> Iterator[threading.Event]:
    """Ends ``connection`` after `SECONDS`: its own time-out is one for each read. The event is set where that has happened."""
    over = threading.Event()

    def end() -> None:
        over.set()
        with suppress(OSError):  # it has ended meanwhile
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # below TLS, which another thread reads

    timer = threading.Timer(SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield over
    except (OSError, http.client.HTTPException):
        if over.is_set():
            raise TimeoutError("its answer did not end in time") from None
        raise
    finally:
        timer.cancel()


def _refused(status: int, content: bytes) -> Exception:
    try:
        refusal = _Problem.model_validate_json(content)
    except ValidationError:
        return GatewayError(f"that is no gateway's records/: it answered {status}")
    if status == 404:
        return GatewayError("no records here: the gateway has no operators' tokens, or keeps them on its ops_port")
    words = _printable(refusal)
    return NotARecord(words) if status == 400 else GatewayError(f"the gateway answered {status}: {words}")


def _printable(refusal: _Problem) -> str:
    return "".join(character if character.isprintable() else " " for character in refusal.detail or refusal.title)


def _is_plain(url: str) -> bool:
    """Whether nothing in it would have to be written otherwise, and its host can be looked up."""
    try:
        (urlsplit(url).hostname or "").encode("idna")
    except UnicodeError:
        return False
    return url.isascii() and url.isprintable() and " " not in url
