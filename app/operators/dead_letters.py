"""Commands for operators: lists dead letters and pending entries, shows one command, retries or discards dead letters.

The command line (``oncegate commands``) and ``dead-letters/`` over HTTP do the same by these functions.

Dead letters are in a stream of their own beside the one that they come from, each with all the fields of its entry, and with
those that describe why it was given up (``dead.``...). An operator removes them; workers trim those that are too many or too
old (``acknowledge.lua``), and count them.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from oncegate.app.operators.audit import Author
from oncegate.app.operators.records import NOBODY, NotARecord, summarise
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.cache.encryption import Encryption, off_loop
from oncegate.cache.errors import GroupMissing, RecordUnreadable
from oncegate.cache.record import Claim
from oncegate.cache.redis.streams.client import StreamClient
from oncegate.cache.redis.streams.encrypted import shown
from oncegate.cache.redis.streams.stream import MOST, CommandStream, PendingEntry
from oncegate.cache.store import Cache
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.results import read_error
from oncegate.middleware.rules.key import RECORD_ID, execution_key, key_of_id

ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_AT_ONCE = 100
SECONDS = 5.0
"""The time-out of a Redis for an operator, who has time; longer where ``cache_timeout`` is."""


class NotAnId(NotARecord):
    """The given text names neither a command nor an entry. The text is one line."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: its ``id`` in its stream, and its fields."""

    id: str
    fields: Mapping[bytes, bytes]

    @property
    def command(self) -> str:
        """The id of its command; empty where the entry was none."""
        return self._text(b"command")

    @property
    def entry(self) -> str:
        """The id that it had in the stream."""
        return self._text(b"dead.entry")

    @property
    def aggregate(self) -> str | None:
        """The id of what its command is about, on a route with ``aggregate``."""
        return self._text(b"aggregate") or None

    @property
    def sequence(self) -> int | None:
        """The command's number among those about that."""
        digits = self.fields.get(b"sequence", b"")
        return int(digits) if digits.isdigit() and len(digits) <= len(str(MOST)) else None

    def as_json(self, *, body: bool = False) -> dict[str, Any]:
        """Its description; with ``body``, the key and the payload too."""
        members: dict[str, Any] = {
            "id": self.id,
            "command": self.command or None,
            "entry": self.entry or None,
            "consumer": self._text(b"dead.consumer"),
            "reason": self._text(b"dead.reason"),
            "attempts": self._number(b"dead.attempts"),
            "error_type": self._text(b"dead.error_type") or None,
            "error": self._text(b"dead.error") or None,
            "died_at": instant(self._number(b"dead.at")),
            "accepted_at": instant(self._number(b"accepted_at")),
            "worker": self._text(b"dead.worker"),
            "retried": self._text(b"retried") or None,
            "method": self._text(b"method") or None,
            "path": self._text(b"target").partition("?")[0] or None,
            "route": self._text(b"route") or None,
            "correlation": self._text(b"correlation") or None,
            "aggregate": self.aggregate,
            "sequence": self.sequence,
            "bytes": len(self.fields.get(b"body", b"")),
        }
        if body:
            members |= {"key": self._text(b"key"), "target": self._text(b"target"), "body": self._text(b"body")}
        return members

    def _text(self, name: bytes) -> str:
        return self.fields.get(name, b"").decode("utf-8", "replace")

    def _number(self, name: bytes) -> int:
        digits = self.fields.get(name, b"")
        return int(digits) if digits.isdigit() and len(digits) < 16 else 0


class Commands:
    """The commands of one ``stream``, as ``consumer`` processes them; their records are in ``cache``.

    Raises `oncegate.cache.errors.CacheError`.
    """

    def __init__(
        self,
        stream: CommandStream,
        cache: Cache,
        namespace: str,
        consumer: str,
        encryption: Encryption | None = None,
    ) -> None:
        self._stream = stream
        self._cache = cache
        self.name = stream.name
        self.namespace = namespace
        self._consumer = consumer
        self._encryption = encryption

    # -- looking ------------------------------------------------------------------------------------------------------

    async def exist(self) -> bool:
        """Whether there is such a stream, or was: its dead letters stay."""
        return await self._stream.exists()

    async def counts(self) -> dict[str, int | None]:
        """How many commands there are that were not ``read`` yet, that are ``pending``, and that are ``dead``; and how many dead
        letters were ``trimmed`` since there are any.

        ``unread`` is ``None`` where Redis can't tell: entries were taken out of the middle of what is still to be read.
        """
        stream = self._stream
        gone = {"dead": await stream.dead(), "trimmed": await stream.trimmed()}
        length = await stream.length()
        for group in await stream.groups():
            if group.name == self._consumer:
                return {"unread": group.unread, "pending": group.pending, **gone}
        return {"unread": length, "pending": 0, **gone}

    async def _letter(self, entry: str, fields: Mapping[bytes, bytes]) -> Letter:
        encrypted = 0 if self._encryption is None else len(fields.get(b"body", b""))
        return Letter(entry, await off_loop(encrypted, shown, fields, self._encryption))

    async def letters(self, *, after: str = "-", last: str = "+") -> AsyncIterator[Letter]:
        """The dead letters, the oldest first; those behind ``after``, up to ``last``."""
        start = after if after == "-" else f"({after}"
        while True:
            some = await self._stream.letters(start, last, _AT_ONCE)
            for entry, fields in some:
                yield await self._letter(entry, fields)
            if len(some) < _AT_ONCE:
                return
            start = f"({some[-1][0]}"

    async def listing(self, *, after: str = "", limit: int = 100) -> dict[str, Any]:
        """At most ``limit`` dead letters behind ``after``, the oldest first, where to go on, and the `counts`."""
        letters: list[Letter] = []
        more = ""
        async for letter in self.letters(after=after or "-"):
            if len(letters) == limit:
                more = letters[-1].id
                break
            letters.append(letter)
        return {"dead_letters": [each.as_json() for each in letters], "counts": await self.counts(), "after": more}

    async def find(self, identifier: str) -> list[Letter]:
        """The dead letters of a command's id, of an entry's, or with that id themselves. Raises `NotAnId`."""
        if ENTRY_ID.fullmatch(identifier):
            some = await self._stream.letters(identifier, identifier, 1)
            if some:
                return [await self._letter(entry, fields) for entry, fields in some]
        elif not RECORD_ID.fullmatch(identifier):
            raise NotAnId(
                "an id is that of a command (two digests with a colon between), or of an entry: 1795281703248-0"
            )
        return [letter async for letter in self.letters() if identifier in (letter.command, letter.entry)]

    async def pending(self, limit: int) -> list[dict[str, Any]]:
        """The entries that workers hold, executed now or waiting to be tried again; at most ``limit``, the oldest first."""
        return [await self._of_pending(each) for each in await self._stream.pending(self._consumer, limit)]

    async def _of_pending(self, held: PendingEntry) -> dict[str, Any]:
        letter = await self._letter(held.entry, await self._stream.entry(held.entry) or {})
        execution = await self._execution(letter.command)
        return {
            "entry": held.entry,
            "command": letter.command or None,
            "aggregate": letter.aggregate,
            "sequence": letter.sequence,
            "state": execution["state"] if execution else "absent",
            "attempt": execution.get("attempt", 0) if execution else 0,
            "worker": held.worker,
            "silent_for": held.idle_ms / 1000,
            "accepted_at": letter.as_json()["accepted_at"],
        }

    async def show(self, identifier: str, *, body: bool = False) -> dict[str, Any] | None:
        """All that is known of a command, by its id, or that of an entry; ``None`` where nothing is. Raises `NotAnId`."""
        letters = await self.find(identifier)
        if letters:
            letter = letters[0]
        elif ENTRY_ID.fullmatch(identifier):
            letter = await self._letter(identifier, await self._stream.entry(identifier) or {})
        else:
            letter = await self._accepted(identifier)
        command = letter.command
        submission = await self._peek(key_of_id(self.namespace, command)) if RECORD_ID.fullmatch(command) else None
        execution = await self._execution(command)
        if not letters and submission is None and execution is None:
            return None
        return {
            "command": command or None,
            "consumer": self._consumer,
            "aggregate": letter.aggregate,
            "sequence": letter.sequence,
            "submission": submission,
            "execution": execution,
            "dead_letters": [letter.as_json(body=body) for letter in letters],
        }

    async def _accepted(self, command: str) -> Letter:
        """What is known of a command by its entry; by its 202 alone, once that is gone."""
        fields = {b"command": command.encode()}
        with suppress(RecordUnreadable):
            held = await self._cache.get(key_of_id(self.namespace, command))
            if held is not None and held.record.submission:
                accepted = read_error(held.record.response)
                fields[b"sequence"] = str(accepted.get("sequence", "")).encode()
                position = str(accepted.get("position", ""))
                if ENTRY_ID.fullmatch(position):
                    return await self._letter(position, await self._stream.entry(position) or fields)
        return Letter("", fields)

    async def _execution(self, command: str) -> dict[str, Any] | None:
        if not RECORD_ID.fullmatch(command):
            return None
        key = execution_key(key_of_id(self.namespace, command), self._consumer)
        try:
            held = await self._cache.get(key)
        except RecordUnreadable:
            return {"state": "unreadable"}
        return None if held is None else _summary(command, held) | {"error": _error(held)}

    async def _peek(self, key: str) -> dict[str, Any] | None:
        try:
            held = await self._cache.peek(key)
        except RecordUnreadable:
            return {"state": "unreadable"}
        if held is None:
            return None
        return _summary("", held) | {"submission": held.record.submission}

    # -- and the way back ---------------------------------------------------------------------------------------------

    async def put_back(self, letter: Letter, author: Author = NOBODY) -> dict[str, list[Any]]:
        """`retry` one. What was ``retried`` (its ``id``, ``command`` and ``entry``); what is ``unread``, and stays: the id of one
        whose consumer reads the stream no more. Neither: it is gone."""
        try:
            entry = await self.retry(letter.id, author)
        except GroupMissing:
            return {"retried": [], "unread": [letter.id]}
        done = [{"id": letter.id, "command": letter.command or None, "entry": entry}] if entry else []
        return {"retried": done, "unread": []}

    async def discard_each(self, letters: Iterable[Letter]) -> list[dict[str, str | None]]:
        """Delete these dead letters; those that were still there, by ``id`` and ``command``."""
        gone = [letter for letter in letters if await self.discard(letter.id)]
        return [{"id": letter.id, "command": letter.command or None} for letter in gone]

    async def retry(self, letter: str, author: Author = NOBODY) -> str | None:
        """Put a dead letter back into its stream, for the consumer that gave it up; returns the new entry's id.

        The entry says who its ``author`` is.

        ``None``: there is no such letter, any more. It is one step: nothing is lost on the way, and nothing comes back twice.
        Raises `GroupMissing` where that consumer has no group, as after a change of its name: no consumer would read the entry.
        """
        return await self._stream.redrive(letter, author.note("retried"))

    async def discard(self, letter: str) -> bool:
        """Delete a dead letter. False: there is none any more."""
        return await self._stream.discard(letter)

    async def newest(self) -> str | None:
        """The id of the newest dead letter: later ones come after it."""
        return await self._stream.newest_letter()


def _summary(command: str, held: Claim) -> dict[str, Any]:
    return {name: value for name, value in summarise(command, held).items() if name != "id"}


def _error(held: Claim) -> dict[str, Any] | None:
    """The error kept in an execution record."""
    return read_error(held.record.response) or None if held.record.state == "failed" else None


@asynccontextmanager
async def open_commands(settings: GatewaySettings, cache: Cache, stream: str, consumer: str) -> AsyncIterator[Commands]:
    """The commands of a stream, by a connection to its Redis that lasts as long as the context. ``cache`` stays its owner's."""
    client = StreamClient(settings.cache, timeout=max(SECONDS, settings.cache_timeout))
    try:
        entries = CommandStream(client, settings.namespace, stream)
        yield Commands(entries, cache, settings.namespace, consumer, settings.encryption())
    finally:
        await client.close()


OpenCommands = Callable[[], AbstractAsyncContextManager[Commands]]
"""Opens the commands of one stream."""
