"""Submits asynchronous requests: an ASGI app that appends the command to its stream and answers 202.

The middleware runs it like any other: a claim before, a record after. So its 202 is what each retry gets, byte for byte,
without code of its own. Where nothing was appended, or that isn't known, the same request may be sent again. A copy may be in the
stream then, as after a crash between the two writes; that is harmless, for a consumer processes one of a command's copies and
skips the others by its own record. What must not happen is that the gateway executes the command beside its copy.

A command with a number has no second copy, which would have another number: Redis keeps where each was appended
(``cache/redis/lua/append_numbered.lua``).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from time import time
from typing import Any

import orjson

from oncegate.cache.callbacks import set_reply, start
from oncegate.cache.encryption import OFF_LOOP_BYTES, Encryption, off_loop
from oncegate.cache.errors import CacheRefused, OncegateError
from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.streams.append import Appended, Numbering, start_append
from oncegate.cache.redis.streams.encrypted import encrypted
from oncegate.cache.redis.streams.memory import MemorySamples
from oncegate.cache.redis.streams.stream import Command, numbers_key, stream_key
from oncegate.middleware.http.asgi import (
    SCOPE_EXTENSION,
    SUBMISSION_EXTENSION,
    AttemptView,
    Receive,
    Scope,
    Send,
    Submission,
    respond,
)
from oncegate.middleware.outcome.errors import GatewayFailed, NotAccepted, OutcomeUnknown
from oncegate.middleware.outcome.responses import Headers, date
from oncegate.middleware.rules.versions import aggregate_digest

_FULL = "The command stream is full: its consumers are behind. Nothing was accepted; try again later."
_NO_MEMORY = (
    "What is left of Redis's memory is needed to execute what was accepted. Nothing was accepted; try again later."
)
_REFUSED = "Redis does not take the command now. Nothing was accepted; send it again with the same key."
_SILENT = (
    "The command stream did not answer, so the command was not accepted. Send it again with the same key: should a copy "
    "have arrived all the same, the two count as one command."
)

_CONFLICT = (
    "The aggregate is at {current} and not at the version that is expected, so that nothing was accepted and the key is free: "
    "look what has changed, and send it again with the version that there is."
)

_AGGREGATE_BYTES, _COMMAND_BYTES = 16, 20
"""The sizes of their digests in the hash: the one of a command is longer."""

_NOTED = frozenset({b"content-type", b"x-correlation-id", b"x-request-id", b"traceparent"})
"""The request's headers that an entry has fields of its own for."""

Response = tuple[int, Headers, bytes]
"""Status, headers and body."""
Then = Callable[[Response | Exception], None]
Count = Callable[[str, str], None]
"""Called with each submission's route and result: ``accepted``, ``conflict``, ``full`` or ``unavailable``."""


class Submitter:
    """An ASGI app that accepts commands, for `IdempotencyMiddleware`'s ``submit``.

    ``client`` is that of the records, ``encryption`` encrypts entries as it does those. ``limit`` is how many entries that a
    group needs a stream may hold; ``prefix`` is what ``Location`` begins with. ``kept`` (s) is how long it is known at least
    that a numbered command was appended.
    """

    def __init__(
        self,
        client: RedisClient,
        namespace: str,
        *,
        encryption: Encryption | None = None,
        prefix: str,
        limit: int,
        kept: float = 0.0,
        count: Count = lambda *_: None,
    ) -> None:
        self._client = client
        self._encryption = encryption
        self._namespace = namespace
        self._prefix = prefix
        self._limit = limit
        self._kept_ms = round(kept * 1000)
        self._memory = MemorySamples(client)
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept one command. Raises `NotAccepted`."""
        view: AttemptView = scope["extensions"][SCOPE_EXTENSION]
        submission: Submission = scope["extensions"][SUBMISSION_EXTENSION]
        body = await _body(receive)
        reply: asyncio.Future[Response | Exception] = asyncio.get_running_loop().create_future()
        try:
            self.start(scope, scope["headers"], body, view.record, submission, partial(set_reply, reply))
        except Exception as error:
            raise GatewayFailed.by(error) from error
        response = await reply
        if isinstance(response, Exception):
            raise response
        await respond(send, *response)

    def start(
        self, scope: Scope, headers: Headers, body: bytes, record: str, submission: Submission, then: Then
    ) -> None:
        """The same by callback, in the running loop: ``then`` gets the response, or the error in its place, perhaps at once.

        It takes a task where the memory is not known yet, or does not suffice, or much is to be encrypted.
        """
        loop = asyncio.get_running_loop()
        key = stream_key(self._namespace, submission.policy.stream)
        command = _command(scope, headers, body, record, submission)
        append = partial(self._append, loop, key, command, submission, then)
        size = 0 if self._encryption is None else len(body)
        if size <= OFF_LOOP_BYTES and self._memory.suffices(key, len(body)):
            append(self._parts(command))
        else:
            start(loop, self._prepare(key, command, size), append)

    async def _prepare(self, key: str, command: Command, size: int) -> list[bytes]:
        """The entry's fields, of which ``size`` bytes are to be encrypted. Raises `NotAccepted` where Redis has no room."""
        if not await self._memory.suffice(key, len(command.body)):
            self._count(command.route, "full")
            raise NotAccepted("overloaded", _NO_MEMORY)
        return await off_loop(size, self._parts, command)

    def _append(
        self,
        loop: asyncio.AbstractEventLoop,
        key: str,
        command: Command,
        submission: Submission,
        then: Then,
        parts: list[bytes] | Exception,
    ) -> None:
        if isinstance(parts, Exception):
            then(parts)
            return
        numbering = self._numbering(command, submission)
        answered = partial(self._on_appended, command, submission, then)
        start_append(self._client, key, parts, limit=self._limit, numbering=numbering, loop=loop, then=answered)

    def _on_appended(
        self, command: Command, submission: Submission, then: Then, appended: Appended | Exception | None
    ) -> None:
        response: Response | Exception
        try:
            response = self._answer(command, submission, appended)
        except OncegateError as error:
            response = error
        except Exception as error:  # noqa: BLE001 - passed on: else who waits would wait for ever
            response = GatewayFailed.by(error)
        then(response)

    def _parts(self, command: Command) -> list[bytes]:
        """The entry's fields, names and values in turn, for Redis."""
        encryption = self._encryption
        if encryption is None:
            return command.parts()
        return [part for pair in encrypted(command.fields(), encryption).items() for part in pair]

    def _numbering(self, command: Command, submission: Submission) -> Numbering | None:
        """The arguments by which the command gets its aggregate's next number; ``None`` where it gets none."""
        version = submission.version
        if version is None:
            return None
        # The payload is part of it: to another one under a free key, this one's number would be wrong.
        same = command.command.encode() + command.fingerprint
        return Numbering(
            numbers_key(self._namespace, submission.policy.stream).encode(),
            aggregate_digest(version.aggregate)[:_AGGREGATE_BYTES],
            blake2b(same, digest_size=_COMMAND_BYTES).digest(),
            version.expected.encode(),
            submission.known_ms,
            self._kept_ms,
        )

    def _answer(self, command: Command, submission: Submission, appended: Appended | Exception | None) -> Response:
        """The response by what the stream has answered. Raises `NotAccepted`."""
        if appended is None:
            self._count(command.route, "full")
            raise NotAccepted("overloaded", _FULL)
        if isinstance(appended, Exception):
            self._count(command.route, "unavailable")
            if isinstance(appended, CacheRefused):
                raise NotAccepted("cache-unavailable", _REFUSED) from appended
            raise NotAccepted("cache-unavailable", _SILENT, copied=True) from appended
        if not appended.entry:
            self._count(command.route, "conflict")
            raise _conflict(submission, appended.number)
        headers, body = accepted(self._prefix, command.command, appended.entry, appended.number)
        self._count(command.route, "accepted")
        return 202, [*headers, date()], body


def _conflict(submission: Submission, current: int | None) -> NotAccepted:
    version = submission.version
    expected: str | int = "*" if version is None or version.expected == "*" else int(version.expected)
    slug = "precondition-failed" if version is not None and version.is_condition else "version-conflict"
    return NotAccepted(slug, _CONFLICT.format(current=current), members={"expected": expected, "current": current})


def accepted(
    prefix: str, command: str, position: str, sequence: int | None = None
) -> tuple[tuple[tuple[bytes, bytes], ...], bytes]:
    """Headers and body of the 202 for the command with this id, which is in its stream at ``position``, under the number
    ``sequence`` if it has one."""
    members: dict[str, str | int] = {"status": "accepted", "position": position, "command": command}
    if sequence is not None:
        members["sequence"] = sequence
    body = orjson.dumps(members)
    headers = (
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"location", f"{prefix}/commands/{command}".encode()),
    )
    return headers, body


def _command(scope: Scope, fields: Headers, body: bytes, record: str, submission: Submission) -> Command:
    """The command made of a request. Its credentials are not kept, unless they are named: it is forwarded later without them."""
    policy, travelling = submission.policy, submission.policy.travelling
    noted: dict[bytes, str] = {}
    headers: list[tuple[str, str]] = []
    for name, value in fields:
        if name in _NOTED and name not in noted:
            noted[name] = value.decode("latin-1")
        if name in travelling or (name.startswith(b"content-") and name != b"content-length"):
            headers.append((name.decode("latin-1"), value.decode("latin-1")))
    query = scope.get("query_string", b"")
    target = (scope.get("raw_path") or scope["path"].encode()) + (b"?" + query if query else b"")
    version = submission.version
    return Command(
        command=record,
        key=submission.key,
        fingerprint=submission.claim.fingerprint,
        method=scope["method"],
        target=target.decode("latin-1"),
        route=policy.route,
        body=body,
        content_type=noted.get(b"content-type", ""),
        correlation=noted.get(b"x-correlation-id") or noted.get(b"x-request-id", ""),
        traceparent=noted.get(b"traceparent", ""),
        headers=tuple(headers),
        accepted_at_ms=int(time() * 1000),
        aggregate="" if version is None else version.aggregate,
    )


async def _body(receive: Receive) -> bytes:
    """The body, which is whole already: no client can leave an enforced request any more."""
    pieces = []
    more = True
    while more:
        message: dict[str, Any] = dict(await receive())
        if message["type"] != "http.request":
            raise OutcomeUnknown("the request's body broke off")
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)
