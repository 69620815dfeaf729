"""Commands for operators: lists dead letters and pending entries, shows one command, retries or discards dead letters.

Dead letters are in a stream of their own beside the one that they come from, each with all the fields of its entry, and with
those that describe why it was given up (``dead.``...). An operator removes them; workers trim those that are too many or too
old (``acknowledge.lua``), and count them.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from oncegate.app.operators.audit import Author
from oncegate.app.operators.records.records import NotARecord, row, summarise
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.turns import in_pieces, others_first
from oncegate.cache.encryption import Encryption, off_loop
from oncegate.cache.errors import GroupMissing, RecordUnreadable
from oncegate.cache.record import MAX_SEQUENCE, Claim, State
from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.streams.commands import stream_client
from oncegate.cache.redis.streams.encrypted import shown
from oncegate.cache.redis.streams.entry_id import ENTRY_ID
from oncegate.cache.redis.streams.letter import Death, number_of, text_of
from oncegate.cache.redis.streams.progress import letter_heads
from oncegate.cache.redis.streams.stream import CommandStream, PendingEntry
from oncegate.cache.store import Cache
from oncegate.middleware.outcome.instants import instant
from oncegate.middleware.outcome.results import read_error
from oncegate.middleware.rules.keys.key import RECORD_ID, execution_key, key_of_id

_AT_ONCE = 10
"""Dead letters that are read before others have the loop, and Redis: a tenth of a millisecond of each."""
MOST_SCANNED = 10_000
"""Dead letters that one answer looks at where nothing else is said, the newest; a worker lets a stream have no more."""
MOST_OF_ONE = 100
"""Dead letters of one command, or of one entry, that are found."""
NOT_ALL = f"among the newest {MOST_SCANNED:,}, and there are others: give the dead letter's own id"
"""The line where none was found, and not all were looked at."""
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
    def route(self) -> str:
        """The pattern of its route."""
        return self._text(b"route")

    @property
    def entry(self) -> str:
        """The id that it had in the stream."""
        return Death.read(self.fields).entry

    @property
    def aggregate(self) -> str | None:
        """The id of what its command is about, on a route with ``aggregate``."""
        return self._text(b"aggregate") or None

    @property
    def sequence(self) -> int | None:
        """The command's number among those about that."""
        digits = self.fields.get(b"sequence", b"")
        return int(digits) if digits.isdigit() and len(digits) <= len(str(MAX_SEQUENCE)) else None

    def as_json(self, *, body: bool = False) -> dict[str, Any]:
        """The letter's description; with ``body``, the key and the payload too."""
        death = Death.read(self.fields)
        members: dict[str, Any] = {
            "id": self.id,
            "command": self.command or None,
            "entry": death.entry or None,
            "consumer": death.consumer,
            "reason": death.reason,
            "attempts": death.attempts,
            "error_type": death.error_type or None,
            "error": death.error or None,
            "died_at": instant(death.at_ms),
            "accepted_at": instant(number_of(self.fields, b"accepted_at")),
            "worker": death.worker,
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
        return text_of(self.fields, name)


class Commands:
    """The commands of one ``stream``, as ``consumer`` processes them; their records are in ``cache``.

    Raises `oncegate.cache.errors.CacheError`.
    """

    def __init__(
        self, stream: CommandStream, cache: Cache, namespace: str, consumer: str, encryption: Encryption | None
    ) -> None:
        self.stream = stream
        self.cache = cache
        self.namespace = namespace
        self.consumer = consumer
        self._encryption = encryption

    # -- looking ------------------------------------------------------------------------------------------------------

    async def counts(self) -> dict[str, int | None]:
        """How many commands are ``unread``, ``pending`` and ``dead``; and how many dead letters were ever ``trimmed``.

        ``unread`` is ``None`` where Redis doesn't know: entries were taken out of the middle of what is still to be read.
        """
        stream = self.stream
        gone = {"dead": await stream.dead(), "trimmed": await stream.trimmed()}
        length = await stream.length()
        for group in await stream.groups():
            if group.name == self.consumer:
                return {"unread": group.unread, "pending": group.pending, **gone}
        return {"unread": length, "pending": 0, **gone}

    async def _letter(self, entry: str, fields: Mapping[bytes, bytes]) -> Letter:
        encrypted = 0 if self._encryption is None else len(fields.get(b"body", b""))
        return Letter(entry, await off_loop(encrypted, shown, fields, self._encryption))

    async def shown(self, letters: Iterable[tuple[str, Mapping[bytes, bytes]]]) -> list[Letter]:
        """Letters of their ids and fields, decrypted as far as they can be."""
        return [await self._letter(letter, fields) for letter, fields in letters]

    async def letters(self, *, after: str = "-", last: str = "+") -> AsyncIterator[Letter]:
        """The dead letters, the oldest first; those behind ``after``, up to ``last``."""
        start = after if after == "-" else f"({after}"
        while True:
            some = await self.stream.letters(start, last, _AT_ONCE)
            for entry, fields in some:
                yield await self._letter(entry, fields)
            await others_first()
            if len(some) < _AT_ONCE:
                return
            start = f"({some[-1][0]}"

    async def heads(self) -> AsyncIterator[Letter]:
        """The dead letters, the newest first: of what, and why, without what they hold."""
        start = "+"
        while True:
            some = await letter_heads(self.stream, start, _AT_ONCE)
            for entry, fields in some:
                yield Letter(entry, shown(fields, self._encryption))
            await others_first()
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
        shown = [each.as_json() async for each in in_pieces(letters, _AT_ONCE)]
        return {"dead_letters": shown, "counts": await self.counts(), "after": more}

    async def find(self, identifier: str) -> tuple[list[Letter], bool]:
        """The dead letters of a command's id, of an entry's, or with that id themselves, the oldest first; and whether they are
        all: nothing keeps them by command, so the newest `MOST_SCANNED` are looked at, until `MOST_OF_ONE` are found.

        Raises `NotAnId`.
        """
        if ENTRY_ID.fullmatch(identifier):
            some = await self.stream.letters(identifier, identifier, 1)
            if some:
                return await self.shown(some), True
        elif not RECORD_ID.fullmatch(identifier):
            raise NotAnId(
                "an id is that of a command (two digests with a colon between), or of an entry: 1795281703248-0"
            )
        found, scanned, are_all = list[str](), 0, True
        async for letter in self.heads():
            if scanned == MOST_SCANNED or len(found) == MOST_OF_ONE:
                are_all = False
                break
            scanned += 1
            if identifier in (letter.command, letter.entry):
                found.append(letter.id)
        whole = [each for one in reversed(found) for each in await self.stream.letters(one, one, 1)]
        return await self.shown(whole), are_all

    async def pending(self, limit: int) -> list[dict[str, Any]]:
        """The entries that workers hold, executed now or waiting to be tried again; at most ``limit``, the oldest first."""
        return [await self._of_pending(each) for each in await self.stream.pending(self.consumer, limit)]

    async def _of_pending(self, held: PendingEntry) -> dict[str, Any]:
        letter = await self._letter(held.entry, await self.stream.entry(held.entry) or {})
        execution = await self.execution(letter.command)
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
        """All that is known of a command, by its id, or that of an entry; ``None`` where nothing is. Raises `NotAnId`.

        ``complete``: whether all of its dead letters are there (see `find`). With ``body``: for
        `oncegate.app.operators.showing.whole_command`, which reports it.
        """
        letters, are_all = await self.find(identifier)
        if letters:
            letter = letters[0]
        elif ENTRY_ID.fullmatch(identifier):
            letter = await self._letter(identifier, await self.stream.entry(identifier) or {})
        else:
            letter = await self.accepted(identifier)
        command = letter.command
        submission, execution = await self._submission(command), await self.execution(command)
        if not letters and submission is None and execution is None:
            return None
        return {
            "command": command or None,
            "consumer": self.consumer,
            "aggregate": letter.aggregate,
            "sequence": letter.sequence,
            "submission": submission,
            "execution": execution,
            "dead_letters": [letter.as_json(body=body) for letter in letters],
            "complete": are_all,
        }

    async def accepted(self, command: str) -> Letter:
        """The letter of an accepted command, made of its entry; of its 202 alone, once that is gone."""
        fields = {b"command": command.encode()}
        with suppress(RecordUnreadable):
            held = await self.cache.get(key_of_id(self.namespace, command))
            if held is not None and held.record.submission:
                accepted = read_error(held.record.response)
                fields[b"sequence"] = str(accepted.get("sequence", "")).encode()
                position = str(accepted.get("position", ""))
                if ENTRY_ID.fullmatch(position):
                    return await self._letter(position, await self.stream.entry(position) or fields)
        return Letter("", fields)

    async def _submission(self, command: str) -> dict[str, Any] | None:
        if not RECORD_ID.fullmatch(command):
            return None
        return await row(self.cache.peek(key_of_id(self.namespace, command)))

    async def execution(self, command: str) -> dict[str, Any] | None:
        """The record of a command's execution, with its error; ``None`` where there is none."""
        if not RECORD_ID.fullmatch(command):
            return None
        key = execution_key(key_of_id(self.namespace, command), self.consumer)
        return await row(self.cache.get(key), _with_error)

    # -- and the way back ---------------------------------------------------------------------------------------------

    async def retry(self, letter: Letter, author: Author) -> dict[str, list[Any]]:
        """Put a dead letter back into its stream, for the consumer that gave it up, with as many attempts as a new command has.

        It is one step: nothing is lost on the way, and nothing comes back twice. The new entry says who the ``author`` is.
        What was ``retried`` (its ``id``, ``command`` and new ``entry``); what is ``unread``, and stays: the id of one whose
        consumer has no group, as after a change of its name. Neither: it is gone.
        """
        try:
            entry = await self.stream.retry(letter.id, author.note("retried"))
        except GroupMissing:
            return {"retried": [], "unread": [letter.id]}
        done = [{"id": letter.id, "command": letter.command or None, "entry": entry}] if entry else []
        return {"retried": done, "unread": []}

    async def discard(self, letters: Iterable[Letter]) -> list[dict[str, str | None]]:
        """Delete these dead letters; those that were still there, by ``id`` and ``command``."""
        gone = [letter for letter in letters if await self.stream.discard(letter.id)]
        return [{"id": letter.id, "command": letter.command or None} for letter in gone]


def _with_error(held: Claim) -> dict[str, Any]:
    failed = held.record.state is State.FAILED
    return summarise(held) | {"error": (read_error(held.record.response) or None) if failed else None}


def operators_client(settings: GatewaySettings) -> RedisClient:
    """A client for operators of the Redis that the streams are in; to be closed. It connects when it is first used."""
    return stream_client(settings.cache, timeout=max(SECONDS, settings.cache_timeout))


def commands_of(settings: GatewaySettings, client: RedisClient, cache: Cache, stream: str, consumer: str) -> Commands:
    """The commands of a stream. ``client`` and ``cache`` stay their owner's."""
    entries = CommandStream(client, settings.namespace, stream)
    return Commands(entries, cache, settings.namespace, consumer, settings.encryption())


@asynccontextmanager
async def open_commands(settings: GatewaySettings, cache: Cache, stream: str, consumer: str) -> AsyncIterator[Commands]:
    """The same by a client that lasts as long as the context."""
    client = operators_client(settings)
    try:
        yield commands_of(settings, client, cache, stream, consumer)
    finally:
        await client.close()
