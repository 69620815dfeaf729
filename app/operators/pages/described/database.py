"""Models of the consumers' database: what waits there, and what operators change."""

from typing import Annotated, Final

from pydantic import AwareDatetime, Field, StringConstraints

from oncegate.app.operators.audit import MOST_REASON, REASON
from oncegate.app.operators.pages.described.document import Missing, Received, RecordId, Sent

MOST_NUMBER: Final = 2**63 - 1
Sequence = Annotated[int, Field(ge=1, le=MOST_NUMBER)]


class AggregateTotalsShape(Sent):
    waiting: int
    parked: int = Field(description="Messages that are parked behind what they wait for")
    oldest: AwareDatetime | None = Field(description="Since when the first of them waits")


class OutboxTotalsShape(Sent):
    waiting: int = Field(description="100000 stands for more, here and below")
    held: int = Field(description="Refused by the broker, or given up: they hold up what is behind them")
    dead: int


class ProjectionTotalsShape(Sent):
    there: int
    stuck: int = Field(description="At an event whose handler fails")


class DatabaseTotalsShape(Sent):
    """null: there is no such table, or this role may not read it."""

    aggregates: AggregateTotalsShape | None
    outbox: OutboxTotalsShape | None
    projections: ProjectionTotalsShape | None


class WaitingShape(Sent):
    """An aggregate that waits at a consumer."""

    consumer: str
    aggregate: str
    waits_for: int = Field(description="The number that has to be applied next")
    since: AwareDatetime
    behind: int = Field(description="Messages that are parked behind it")
    record: str | None = Field(description="Where the message itself is here, since it has failed for good: its id")
    attempts: int
    reason: str | None = Field(description="Its last error")
    early: int = Field(
        description="The highest number that came early and stays with its broker; 0: what came is parked"
    )


class WaitingList(Sent):
    waiting: list[WaitingShape]
    cursor: str = Field(description="Empty where those were all")


class MarkerShape(Sent):
    consumer: str
    received_at: AwareDatetime
    result_bytes: int | None
    fingerprint: str | None


class MarkerList(Sent):
    record: RecordId
    markers: list[MarkerShape]


class OutboxMessageShape(Sent):
    id: Sequence
    state: str = Field(pattern="^(waiting|refused|dead|published)$")
    outbox: str
    topic: str
    aggregate: str | None
    sequence: int | None
    added_at: AwareDatetime
    published_at: AwareDatetime | None
    attempts: int
    refusal: str | None = Field(description="Why the broker has refused it last")
    correlation: str
    body_bytes: int
    key: str | Missing = Field(default=None, description="With body=true; so are headers and body")
    headers: dict[str, str] | Missing = None
    body: str | Missing = Field(default=None, description="The first 64 KiB, as text")


class OutboxList(Sent):
    messages: list[OutboxMessageShape]
    after: int = Field(description="0 where those were all")


class ProjectionShape(Sent):
    name: str
    events: str = Field(description="The table that it reads")
    behind: int | None = Field(description="Rows to be applied, 100000 for more; null: this role can't count them")
    transaction: int
    position: int
    moved_at: AwareDatetime | None = Field(description="When events were applied last")
    stuck_at: int | None = Field(description="The position of the event whose handler fails")
    stuck_since: AwareDatetime | None
    attempts: int
    reason: str | None


class ProjectionList(Sent):
    projections: list[ProjectionShape]


class Aggregate(Received):
    aggregate: Annotated[str, Field(min_length=1, max_length=1000, description="Its id")]


class Reasoned(Received):
    reason: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=MOST_REASON, pattern=f"^{REASON.pattern}$"),
    ] = Field(description="Kept in the audit, beside the operator's name")


class RetryParked(Reasoned, Aggregate):
    consumer: Annotated[str, Field(pattern="^[A-Za-z0-9._-]{1,64}$")]


class SkipNumber(RetryParked):
    sequence: Sequence = Field(description="The number that the aggregate waits for")


class SkipEvent(Reasoned):
    position: Annotated[int, Field(ge=-MOST_NUMBER, le=MOST_NUMBER)] = Field(
        description="The position at which the projection stands"
    )


class SkippedNumber(Sent):
    skipped: Sequence
    behind: int = Field(description="Messages that are parked behind it, and follow by themselves")


class RetriedNumber(Sent):
    retried: Sequence


class RetriedMessages(Sent):
    retried: int


class DiscardedMessage(Sent):
    discarded: Sequence


class SkippedEvent(Sent):
    skipped: int
