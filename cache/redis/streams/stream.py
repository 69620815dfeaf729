"""The stream of accepted commands: reads, appends and trims its entries.

Strategy. An entry that a group still needs is never trimmed: trimming goes up to the lowest id that some group has not read
or not acknowledged, and without a group it does nothing. Where that leaves no room, a new command is refused, and an accepted
one stays. One script does all that (``cache/redis/lua/append.lua``), so that no group can come in between.

Appending goes over the connections of the records (`append_entry` says why), all else over those of a `stream_client`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson

from oncegate.cache.errors import CacheRefused, GroupMissing
from oncegate.cache.fields import FIELD_VALUE
from oncegate.cache.record import DEAD_TOKEN, FINGERPRINT_BYTES, MAX_SEQUENCE, Record, State, StoredResponse
from oncegate.cache.redis.client import RedisClient
from oncegate.cache.redis.connection.pipe import Reply
from oncegate.cache.redis.scripts import APPEND, RETRY
from oncegate.cache.redis.streams.commands import run_command, run_script
from oncegate.cache.redis.streams.entry_id import added_at_ms
from oncegate.cache.redis.streams.memory import StreamMemory, memory_of

Fields = dict[bytes, bytes]
"""The fields of an entry."""

VERSION = b"1"


class NotACommand(ValueError):
    """A stream entry that is none of ours, or of a version that this one can't read."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A consumer group: how many entries it has not read (``None``: Redis does not know), and how many not acknowledged."""

    name: str
    unread: int | None
    pending: int


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry that ``worker`` holds, and has not refreshed for ``idle_ms``."""

    entry: str
    worker: str
    idle_ms: int


_PAGE: Final = 100
"""Entries read at once: with their bodies."""


def sent_ms(accepted_at: bytes, entry: bytes) -> int | None:
    """The time at which a command was sent, in Unix ms: by the gateway's clock, else by that of Redis, in its id.

    A dead letter that is retried has a new entry; its effect may be as old as the first one.
    """
    accepted_ms = int(accepted_at) if accepted_at.isdigit() else 0
    return accepted_ms or added_at_ms(entry)


# Not frozen, which takes ten times as long to make: every submission does. Nothing changes one.
@dataclass(slots=True, unsafe_hash=True)
class Command:
    """One accepted command, as it is in the stream.

    ``command`` is the id of its record. ``target`` is the raw path with its query; it and the other texts that came over the
    wire are Latin-1, so that each octet is kept. ``attempts_before`` is how many attempts had been made when an operator retried
    it again, 0 on a first submission. ``accepted_at_ms`` is Unix time, for people. ``headers`` are the request's lines that
    travel with it, names in lower case, in their order: empty in entries of former versions, which bring ``content_type`` alone.
    ``aggregate`` is the id of what the command is about, and ``sequence`` its number among the commands about that: both are
    there, or neither; an entry gets its number as it is appended.
    """

    command: str
    key: str
    fingerprint: bytes
    method: str
    target: str
    route: str
    body: bytes
    content_type: str = ""
    correlation: str = ""
    traceparent: str = ""
    accepted_at_ms: int = 0
    attempts_before: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    aggregate: str = ""
    sequence: int | None = None

    def fields(self) -> dict[bytes, bytes]:
        """The entry's fields, in the order in which they are written."""
        fields = {
            b"v": VERSION,
            b"command": self.command.encode(),
            b"key": self.key.encode(),
            b"fingerprint": self.fingerprint.hex().encode(),
            b"method": self.method.encode("latin-1"),
            b"target": self.target.encode("latin-1"),
            b"route": self.route.encode(),
            b"content-type": self.content_type.encode("latin-1"),
            b"correlation": self.correlation.encode("latin-1"),
            b"traceparent": self.traceparent.encode("latin-1"),
            b"accepted_at": b"%d" % self.accepted_at_ms,
        }
        if self.aggregate:
            fields[b"aggregate"] = self.aggregate.encode()
        if self.sequence is not None:
            fields[b"sequence"] = b"%d" % self.sequence
        if self.headers:
            fields[b"headers"] = orjson.dumps(self.headers)
        if self.attempts_before:
            fields[b"attempts_before"] = b"%d" % self.attempts_before
        fields[b"body"] = self.body
        return fields

    def record(self, response: StoredResponse) -> Record:
        """The record of its submission, as it was accepted with ``response``."""
        return Record(State.SUCCEEDED, DEAD_TOKEN, self.fingerprint, 1, response, submission=True)

    def parts(self) -> list[bytes]:
        """The same, names and values in turn, for Redis."""
        return [*chain.from_iterable(self.fields().items())]

    @classmethod
    def read(cls, fields: dict[bytes, bytes]) -> "Command":
        """The command of an entry. Raises `NotACommand`, in one line that quotes nothing of what the entry holds."""
        version = fields.get(b"v")
        if version != VERSION:
            what = "has no version" if version is None else "is of another version"
            raise NotACommand(f"the entry is no command that can be read: it {what}")
        missing = [name.decode() for name in _REQUIRED if not fields.get(name)]
        if b"body" not in fields:
            missing.append("body")
        if missing:
            raise NotACommand(f"the entry is no command: it lacks {', '.join(missing)}")
        try:
            return cls(
                command=fields[b"command"].decode("ascii"),
                key=fields[b"key"].decode(),
                fingerprint=_fingerprint(fields[b"fingerprint"]),
                method=fields[b"method"].decode("latin-1"),
                target=fields[b"target"].decode("latin-1"),
                route=fields[b"route"].decode(),
                body=fields[b"body"],
                content_type=fields.get(b"content-type", b"").decode("latin-1"),
                correlation=fields.get(b"correlation", b"").decode("latin-1"),
                traceparent=fields.get(b"traceparent", b"").decode("latin-1"),
                accepted_at_ms=int(fields.get(b"accepted_at") or 0),
                attempts_before=int(fields.get(b"attempts_before") or 0),
                headers=_headers(fields.get(b"headers") or b"[]"),
                aggregate=fields.get(b"aggregate", b"").decode(),
                sequence=_sequence(fields.get(b"sequence")),
            )
        except (ValueError, TypeError):
            raise NotACommand("the entry is no command: a field of it can't be read") from None


_REQUIRED = (b"command", b"key", b"fingerprint", b"method", b"target", b"route")
_is_text = re.compile(FIELD_VALUE).fullmatch


def _headers(kept: bytes) -> tuple[tuple[str, str], ...]:
    lines = orjson.loads(kept)
    if not all(_is_text(name) and _is_text(value) for name, value in lines):
        raise ValueError("a field line holds a character that no header may have")
    return tuple((name, value) for name, value in lines)


def _sequence(digits: bytes | None) -> int | None:
    if not digits:
        return None
    number = int(digits)
    if not digits.isdigit() or not 0 < number <= MAX_SEQUENCE:
        raise ValueError("a number has 63 bits, and is above 0")
    return number


def _fingerprint(digits: bytes) -> bytes:
    fingerprint = bytes.fromhex(digits.decode("ascii"))
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ValueError("a fingerprint has 32 hex digits")
    return fingerprint


def stream_key(namespace: str, name: str) -> str:
    """The Redis key of a stream. Its braces put all that belongs to it in one slot of a cluster."""
    return f"{{{namespace}:stream:{name}}}"


def numbers_key(namespace: str, name: str) -> str:
    """The Redis key of the hash that has the last number of each aggregate of the stream."""
    return stream_key(namespace, name) + ":numbers"


def dead_letters_key(namespace: str, name: str) -> str:
    """The Redis key of the stream's dead letters."""
    return stream_key(namespace, name) + ":dead"


class CommandStream:
    """The command stream ``name`` of ``namespace``, for readers. ``client`` stays its owner's, who closes it.

    What Redis or the way to it refuses is raised as `CacheUnavailable`.
    """

    def __init__(self, client: RedisClient, namespace: str, name: str) -> None:
        self.client = client
        self.name = name
        self.key = stream_key(namespace, name)
        self.dead_key = dead_letters_key(namespace, name)
        self.trimmed_key = self.dead_key + ":trimmed"
        """Counts the dead letters that were too many, or too old."""

    async def trim(self) -> int:
        """Remove what no group needs any more; how many entries that were. Without a group: none."""
        return int(await run_script(self.client, APPEND, (self.key,), 0))

    async def memory(self) -> StreamMemory:
        """The memory where the stream is, and its length."""
        try:
            return await memory_of(self.client, self.key)
        except CacheRefused:  # this user may not see how full it is
            return StreamMemory(0, 0, await self.length())

    async def length(self) -> int:
        """How many entries there are, those included that no group needs any more."""
        return int(await run_command(self.client, "XLEN", self.key))

    async def exists(self) -> bool:
        """Whether there is such a stream, or was: its dead letters stay."""
        return bool(await run_command(self.client, "EXISTS", self.key, self.dead_key))

    async def entry(self, entry: str) -> Fields | None:
        """The fields of one entry; ``None`` where it is gone."""
        found = entries_of(await run_command(self.client, "XRANGE", self.key, entry, entry))
        return found[0][1] if found else None

    async def groups(self) -> list[GroupProgress]:
        """The groups that read the stream; none where there is no stream."""
        try:
            groups = [pairs(each) for each in await run_command(self.client, "XINFO GROUPS", self.key)]
        except GroupMissing:
            return []
        return [
            GroupProgress(each[b"name"].decode("utf-8", "replace"), each.get(b"lag"), each[b"pending"])
            for each in groups
        ]

    async def pending(self, group: str, limit: int) -> list[PendingEntry]:
        """At most ``limit`` entries that ``group`` has not acknowledged, the oldest first; none where there is no such group."""
        try:
            held = await run_command(self.client, "XPENDING", self.key, group, "-", "+", limit)
        except GroupMissing:
            return []
        return [
            PendingEntry(entry.decode(), worker.decode("utf-8", "replace"), idle) for entry, worker, idle, _ in held
        ]

    async def oldest_needed(self, group: str) -> bytes | None:
        """The oldest entry that ``group`` has not acknowledged, or not read; ``None`` where there is none.

        A group that is not there has read nothing.
        """
        read = b"-"
        try:
            if held := await self.pending(group, 1):
                return held[0].entry.encode()
            found = [pairs(each) for each in await run_command(self.client, "XINFO GROUPS", self.key)]
            read = next((b"(" + each[b"last-delivered-id"] for each in found if each[b"name"] == group.encode()), b"-")
        except GroupMissing:
            pass  # nor is there a stream, then
        unread = entries_of(await run_command(self.client, "XRANGE", self.key, read, "+", "COUNT", 1))
        return unread[0][0] if unread else None

    async def oldest_sent_ms(self, group: str) -> int | None:
        """The earliest instant at which any command was sent that `oldest_needed` or a later entry holds; ``None``: none is held.

        An entry's own instant is its gateway's (``sent_ms``), so the oldest entry's need not be the earliest. Reads them all.
        """
        start, earliest = await self.oldest_needed(group), None
        while start is not None:
            page = entries_of(await run_command(self.client, "XRANGE", self.key, start, "+", "COUNT", _PAGE))
            for entry, fields in page:
                at_ms = sent_ms(fields.get(b"accepted_at", b""), entry)
                earliest = at_ms if earliest is None or (at_ms is not None and at_ms < earliest) else earliest
            start = b"(" + page[-1][0] if len(page) == _PAGE else None
        return earliest

    # -- dead letters -------------------------------------------------------------------------------------------------

    async def dead(self) -> int:
        """How many dead letters there are."""
        return int(await run_command(self.client, "XLEN", self.dead_key))

    async def trimmed(self) -> int:
        """How many dead letters were too many, or too old, since there are any."""
        return int(await run_command(self.client, "GET", self.trimmed_key) or 0)

    async def letters(self, start: str, last: str, count: int) -> list[tuple[str, Fields]]:
        """At most ``count`` dead letters from ``start`` to ``last``, as XRANGE takes them, the oldest first."""
        found = entries_of(await run_command(self.client, "XRANGE", self.dead_key, start, last, "COUNT", count))
        return [(letter.decode(), fields) for letter, fields in found]

    async def newest_letter(self) -> str | None:
        """The id of the newest dead letter."""
        found = await run_command(self.client, "XREVRANGE", self.dead_key, "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else None

    async def retry(self, letter: str, note: str) -> str | None:
        """Put a dead letter back into the stream, in one step; the id of the new entry, ``None``: there is no such letter.

        ``note`` is one line for people, and stays with the entry.

        Raises `GroupMissing` where the consumer that gave it up has no group: nobody would read the entry.
        """
        entry: bytes | None = await run_script(self.client, RETRY, (self.key, self.dead_key), letter, note)
        return entry.decode() if entry else None

    async def discard(self, letter: str) -> bool:
        """Delete a dead letter. False: there is none any more."""
        return bool(await run_command(self.client, "XDEL", self.dead_key, letter))


def pairs(flat: Sequence[Any]) -> dict[bytes, Any]:
    """A map as RESP2 has it: a name, its value, the next name..."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def entries_of(reply: Reply) -> list[tuple[bytes, Fields]]:
    """The entries of a reply; without fields what was deleted meanwhile."""
    return [(entry, pairs(fields or ())) for entry, fields in reply or ()]
