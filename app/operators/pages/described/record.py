"""Records, what operators make of them, and the audit of that."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from oncegate.app.operators.audit import MOST_REASON, REASON
from oncegate.app.operators.pages.described.document import (
    CallerDigest,
    Change,
    Lines,
    Missing,
    Received,
    RecordId,
    Sent,
)
from oncegate.app.operators.pages.described.problem import OriginalResult
from oncegate.app.operators.records.resolving import MOST_SECONDS

RecordState = Literal["in-flight", "succeeded", "failed", "unknown"]


class RecordShape(Sent):
    """Times are in seconds; null is what isn't known, or isn't there yet."""

    id: RecordId
    state: RecordState
    attempt: Annotated[int, Field(ge=1)]
    lapsed: bool = Field(description="unknown, because its gateway has been silent since its lease ran out")
    submission: bool = Field(description="Of a command that is processed later: succeeded says that it was accepted")
    began_at: AwareDatetime | None
    ended_at: AwareDatetime | None
    took: Annotated[float, Field(ge=0)] | None
    gateway: str | None = Field(description="Its host and process")
    note: str | None
    method: str | None = Field(default=None, description="The request's method; null where it isn't known.")
    route: str | None = Field(default=None, description="The pattern of the request's route, * for the default one.")
    trace_id: str | None = Field(
        default=None, description="The id of the trace that the attempt is a part of; null where none is kept."
    )
    status: int | None
    lease_left: float | None = Field(description="Below 0 where it has lapsed")
    expires_in: float


class UnreadableRecord(Sent):
    id: RecordId
    state: Literal["unreadable"]


class KeptResponse(OriginalResult):
    """The response as it was kept."""

    status: Annotated[int, Field(ge=200, le=599)]


class WholeRecord(RecordShape):
    found: Literal["absent", "failed", "unknown"] | None = Field(description="What an attempt in flight has found")
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | Missing = Field(
        default=None, description="The digest of its method, path, query and payload, as a retry's must be"
    )
    response: KeptResponse | Missing | None = Field(
        default=None, description="With response=true; null where none is kept"
    )


class RecordList(Sent):
    records: list[RecordShape | UnreadableRecord]
    cursor: str
    scanned: int | Missing = Field(default=None, description="Of the newest: how many were looked at")
    complete: bool | Missing = Field(default=None, description="Of the newest: whether those were all that there are")
    counts: dict[str, int] | Missing = Field(
        default=None, description="Of the newest: how many of those looked at are chosen, by state, in whatever state"
    )


class NewestRecords(RecordList):
    """The same, where the newest were wanted."""

    scanned: int
    complete: bool
    counts: dict[str, int]


class RecordIds(Sent):
    ids: list[RecordId]


class Find(Received):
    key: Annotated[str, Field(min_length=1, max_length=1000)] | Missing = Field(
        default=None, description="As it is sent, quoted or bare; without: all that the caller has sent."
    )
    caller: list[Annotated[str, Field(examples=["Authorization: Bearer ..."])]] | None = Field(
        default=None, description="The caller's header lines; without: every caller."
    )


class Release(Change):
    force: bool = Field(default=False, description="Also while the attempt is running. It runs on all the same")
    attempt: Annotated[int, Field(ge=0, description="The attempt that was looked at; 0: any")] = 0


class _Finding(Received):
    outcome: Literal["succeeded", "failed"] = Field(alias="as")
    status: Annotated[int, Field(ge=200, le=599)] | None = Field(
        default=None, description="What retries get; a success needs one"
    )
    headers: Lines = Field(default=[])
    body: str = ""
    body_encoding: Literal["text", "base64"] = "text"
    ttl: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = Field(
        default=None, description="Seconds; without: the longest of any route"
    )


class Outcome(_Finding, Release):
    pass


class Resolved(Sent):
    id: RecordId
    resolution: Literal["resolved"]
    state: Literal["absent", "succeeded", "failed"]


class OfUnknown(Received):
    """Which records of unknown outcome: all, or those of a route, of callers, of a time."""

    reason: Annotated[str, Field(max_length=MOST_REASON, pattern=f"^[^\\s{REASON.pattern[2:-1]}{REASON.pattern}$")] = (
        Field(description="Kept with each record, and logged, beside the operator's name")
    )
    route: Annotated[str, Field(max_length=1000)] | Missing = Field(
        default=None, description="Only those of this route; * is the default one"
    )
    caller: list[CallerDigest] | Missing = Field(default=None, description="Only those of a caller, by its digest")
    since: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | Missing = Field(
        default=None, description="Only those that began at most so many seconds before until"
    )
    older: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | Missing = Field(
        default=None, description="Only those that began more than so many seconds before until"
    )
    until: AwareDatetime | Missing = Field(
        default=None,
        description="Only those that were unknown then: when they were looked at. Without: now; the answer has it",
    )
    cursor: str = Field(default="", description="Where an earlier answer ended; with the until that it had")
    dry_run: bool = Field(default=False, description="Only count")


class OutcomeOfUnknown(_Finding, OfUnknown):
    """The same, and what became of them."""


class UnknownChanged(Sent):
    until: AwareDatetime
    scanned: int = Field(description="How many records this answer has looked at")
    found: int = Field(description="How many of them were meant")
    resolved: int
    refused: int = Field(description="Those that others have changed between the look and the change")
    left: int = Field(description="Of unknown outcome, but not at until already, or they don't say since when")
    cursor: str
    complete: bool = Field(description="Whether those were all; else it goes on with cursor, empty or not, and until")


class AuditLine(Sent):
    at: AwareDatetime | None
    operator: str = Field(description="The token's name, or user@host; empty for a token without a name")
    what: str
    done: str
    reason: str
    process: str = Field(description="The host and process that did it")


class AuditList(Sent):
    lines: list[AuditLine]
    kept: int = Field(description="How many are kept: the last 1,000, until 30 days after the last one")
