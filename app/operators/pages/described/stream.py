"""Streams of commands, and their dead letters."""

from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from oncegate.app.operators.letters.group import GROUP
from oncegate.app.operators.pages.described.document import Missing, Position, Sent, Sequence


class Counts(Sent):
    unread: int | None = Field(description="null: Redis can't tell")
    pending: int
    dead: int
    trimmed: int = Field(description="Dead letters that were too many or too old, and are gone")


class DeadLetter(Sent):
    """null is what isn't known."""

    id: Position
    command: str | None
    entry: str | None = Field(description="The id that it had in the stream")
    consumer: str
    reason: str
    attempts: int
    error_type: str | None
    error: str | None
    died_at: AwareDatetime | None
    accepted_at: AwareDatetime | None
    worker: str
    retried: str | None = Field(description="By whom it was retried before, and why")
    method: str | None
    path: str | None
    route: str | None
    correlation: str | None
    aggregate: str | None = Field(description="The id of what the command is about, on a route with aggregate")
    sequence: Sequence | None = Field(description="Its number among the commands about that")
    bytes: int
    key: str | Missing = Field(default=None, description="With body=true; so are target and body")
    target: str | Missing = None
    body: str | Missing = None


class DeadLetterList(Sent):
    dead_letters: list[DeadLetter]
    counts: Counts
    after: str = Field(description="Empty where those were all")


class CommandShape(Sent):
    """All that is known of a command: its two records, as in records/, and its dead letters."""

    command: str | None
    consumer: str
    aggregate: str | None = Field(description="As in dead letters, while its entry or a letter is there")
    sequence: Sequence | None = Field(description="The same, also while its 202 is kept")
    submission: dict[str, Any] | None
    execution: dict[str, Any] | None
    dead_letters: list[DeadLetter]
    complete: bool = Field(description="Whether all dead letters were looked at for its own: the newest 10,000 are")


class Discarded(Sent):
    id: Position
    command: str | None


class Retried(Discarded):
    entry: Position = Field(description="Its id in the stream, from now on")


class RetriedList(Sent):
    retried: list[Retried]
    unread: list[Position] = Field(description="Those that stay: their consumer reads the stream no more")
    complete: bool = Field(description="Whether these are all of that id: the newest 10,000 dead letters are looked at")


class DiscardedList(Sent):
    discarded: list[Discarded]
    complete: bool = Field(description="Whether these are all of that id: the newest 10,000 dead letters are looked at")


LetterGroupId = Annotated[str, Field(pattern=f"^{GROUP.pattern}$")]


class LetterGroupShape(Sent):
    group: LetterGroupId
    reason: str
    error_type: str | None
    error: str | None = Field(description="Its first line, in which numbers and ids are #")
    count: int
    newest_at: AwareDatetime | None
    oldest_at: AwareDatetime | None
    example: Position = Field(description="The newest of its dead letters")
    routes: list[str] = Field(description="At most five")


class LetterGroupList(Sent):
    groups: list[LetterGroupShape] = Field(description="At most 100, the largest first")
    scanned: int = Field(description="How many dead letters were looked at, from the newest on")
    complete: bool = Field(description="Whether those were all")
    others: int = Field(description="Letters in groups that are not among these")


class GroupChanged(Sent):
    changed: int
    unread: int = Field(description="Those that stay: their consumer reads the stream no more")
    more: bool = Field(description="Whether there may be more of the group: an answer changes 1,000 at most")


class StreamWorker(Sent):
    name: str
    pending: int = Field(description="Entries that it holds")
    silent_for: float = Field(description="Seconds since it last spoke to Redis")


class StreamGroup(Sent):
    name: str = Field(description="The consumer")
    lag: int | None = Field(description="Entries that it has not read; null: Redis can't tell")
    pending: int = Field(description="Read, and not acknowledged")
    oldest_at: AwareDatetime | None = Field(description="When the oldest was added that it has not done with")
    workers: list[StreamWorker] = Field(description="At most 100, those that hold most first")
    more_workers: int


class StreamShape(Sent):
    stream: str
    consumer: str = Field(description="The consumer that the routes of this gateway name")
    length: int = Field(description="All entries, those included that no consumer needs any more")
    oldest_at: AwareDatetime | None = Field(description="When the oldest of them was added")
    dead: int
    trimmed: int = Field(description="Dead letters that were too many or too old, and are gone")
    groups: list[StreamGroup] = Field(description="None: nobody has begun to read it")


class StreamList(Sent):
    streams: list[StreamShape]
