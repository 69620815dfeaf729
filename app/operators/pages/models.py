"""The JSON that operators and callers send and get, as models: what comes in is checked by them, and they are described.

What goes out is written from plain dicts: a model would change the bodies that it quotes. Where a class elsewhere has the
name, the one here ends with ``Shape``, and its schema doesn't (`oncegate.app.operators.pages.description`).
"""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints
from pydantic.json_schema import SkipJsonSchema

from oncegate.app.operators.audit import MOST_REASON, REASON
from oncegate.app.operators.letter_group import GROUP
from oncegate.app.operators.newest import CALLER_DIGEST
from oncegate.app.operators.records import MOST_SECONDS
from oncegate.cache.redis.streams.entry_id import ENTRY_ID
from oncegate.middleware.rules.keys.key import RECORD_ID
from oncegate.middleware.rules.setting_types import Comparison, Mode, OnError, OnMismatch, OnUnknown

State = Literal["in-flight", "succeeded", "failed", "unknown"]
PATTERN: dict[str, Any] = {"pattern": f"^{RECORD_ID.pattern}$"}
"""The form of a record's id: described, and checked where the record is looked for, which says what is wrong in better words."""
RecordId = Annotated[str, Field(pattern=PATTERN["pattern"])]
CallerDigest = Annotated[str, Field(pattern=f"^{CALLER_DIGEST.pattern}$")]
Position = Annotated[str, Field(pattern=f"^{ENTRY_ID.pattern}$")]
Sequence = Annotated[int, Field(ge=1)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
Lines = list[tuple[str, str]]
Missing = SkipJsonSchema[None]
"""In the place of a member that may be left out, and is never null."""


class _Sent(BaseModel):
    """A document that a gateway sends. A reader lets other members be there too: a newer gateway may send more."""

    model_config = ConfigDict(hide_input_in_errors=True, json_schema_extra={"additionalProperties": False})


class _Received(BaseModel):
    """A document that a gateway is sent, with these members alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Health(_Sent):
    status: Literal["up"]


class ReadinessShape(_Sent):
    status: Literal["ready", "not ready", "draining"]
    upstream: Literal["reachable", "unreachable"]
    cache: Literal["available", "read-only", "unavailable"] = Field(
        description="What passes through doesn't need it. read-only: replays are answered, new keys are refused"
    )


class Ready(ReadinessShape):
    status: Literal["ready"]
    upstream: Literal["reachable"]


class NotReady(ReadinessShape):
    status: Literal["not ready", "draining"]


class KeyRules(_Sent):
    syntax: list[str]
    characters: Annotated[list[int], Field(min_length=2, max_length=2, description="At least and at most")]
    case_sensitive: Literal[True]


class ScopeRules(_Sent):
    headers: Annotated[list[str], Field(description="What tells callers apart")]
    claims: Annotated[list[str], Field(description="The same, of a verified token")]
    required: bool


class FingerprintRules(_Sent):
    parts: tuple[Literal["method"], Literal["path"], Literal["query"], Literal["body"]]
    body: Comparison


_Seconds = Annotated[float, Field(gt=0)]
_Ranges = list[Annotated[str, Field(pattern="^[2-5][0-9]{2}(-[2-5][0-9]{2})?$")]]


class Expiry(_Sent):
    """Seconds."""

    success: _Seconds
    error: _Seconds
    unknown: _Seconds


class Statuses(_Sent):
    """The statuses that count as each outcome, as ranges ("200-399")."""

    success: _Ranges
    error: _Ranges
    unknown: _Ranges
    not_kept: _Ranges


class WaitRules(_Sent):
    """Seconds that a concurrent duplicate waits for the outcome: where Prefer doesn't say, and the most that it may ask for."""

    by_default: Annotated[int, Field(ge=0)]
    at_most: Annotated[float, Field(ge=0)]


class RoutePolicy(_Sent):
    path: str = Field(description="* stands for any run of characters")
    methods: Annotated[list[str], Field(description="Empty where enforcement is switched off")]
    matched: bool | Missing = Field(
        default=None, description="Whether a request has matched it since the start, in any worker; not of the last"
    )
    mode: Mode = Field(description="Whether a request is executed at once or accepted to be processed later")
    header: str
    aliases: list[str]
    required: bool
    generated_if_missing: bool
    key_pattern: str | None = Field(description="uuid, uuid7, ulid, or a regular expression; null: any key")
    wait: WaitRules
    scope: ScopeRules
    fingerprint: FingerprintRules
    expiry: Expiry
    statuses: Statuses
    enforced_percent: Annotated[float, Field(ge=0, le=100)] = Field(
        description="Percent of the keys that are under enforcement; what is not passes untouched"
    )
    on_error: OnError
    on_unknown: OnUnknown
    on_mismatch: OnMismatch
    on_duplicate: Literal["replay", "error"]
    documentation: str


class PolicyShape(_Sent):
    specification: Literal["draft-ietf-httpapi-idempotency-key-header-07"]
    gateway: Annotated[str, Field(pattern="^oncegate ")]
    configuration: Digest = Field(description="Of all settings in effect, without anything secret")
    key: KeyRules
    routes: Annotated[
        list[RoutePolicy],
        Field(min_length=1, description="In the order in which they are tried; the last is for all other paths."),
    ]


class ErrorMember(_Sent):
    """The problem once more, in the form that SDKs of a well-known family look for."""

    type: Literal["api_error", "idempotency_error", "invalid_request_error"]
    code: str = Field(description="The problem's code; of an operation's problem, its title: not-found")
    message: Annotated[str, Field(min_length=1, description="detail, where there is one")]


class OriginalResult(_Sent):
    """With the code duplicate, the result that is there. The same of a command that has succeeded."""

    status: Annotated[int, Field(ge=200, le=599)] | Missing = None
    headers: Lines | Missing = None
    body: Any = Field(default=None, description="A JSON value, else a string, else base64")
    body_encoding: Literal["base64"] | Missing = None
    body_omitted: Literal[True] | Missing = Field(default=None, description="It was too large to be kept")
    completed_at: AwareDatetime | None = None


RequestId = Annotated[
    str,
    StringConstraints(pattern="^[A-Za-z0-9._-]{1,128}$"),
    Field(description="The id of this request, as in X-Request-Id and in logs"),
]


class Problem(BaseModel):
    """A problem (RFC 9457) that the gateway answers with in the upstream's place."""

    type: Annotated[str, Field(min_length=1, json_schema_extra={"format": "uri-reference"})] = Field(
        description="The page about it: prefix, problems/ and the code, or docs_url and the code as its fragment"
    )
    title: str
    status: int
    detail: Annotated[str, Field(min_length=1)]
    code: str
    retryable: bool = Field(description="Whether the same request may be sent again unchanged")
    error: ErrorMember
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | Missing = None
    record: RecordId | Missing = Field(default=None, description="An id that logs carry too")
    request_id: RequestId
    original_result: OriginalResult | Missing = None
    original_trace_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | Missing = Field(
        default=None, description="The trace of the first execution, where that is known"
    )
    expected: Annotated[int, Field(ge=0)] | Literal["*"] | Missing = Field(
        default=None, description="With version-conflict and precondition-failed: the version that was expected"
    )
    current: Annotated[int, Field(ge=0)] | Missing = Field(
        default=None, description="With the same: the version that the aggregate has"
    )


class OperationProblem(_Sent):
    """A problem (RFC 9457) under the gateway's own prefix."""

    title: Literal[
        "Bad Request",
        "Unauthorized",
        "Forbidden",
        "Not Found",
        "Method Not Allowed",
        "Request Timeout",
        "Conflict",
        "Content Too Large",
        "Record Unreadable",
        "Cache Unavailable",
        "Database Unavailable",
    ]
    status: Literal[400, 401, 403, 404, 405, 408, 409, 413, 500, 503]
    detail: str | Missing = None
    error: ErrorMember
    request_id: RequestId
    resolution: Literal["absent", "in-flight", "settled", "other-attempt"] | Missing = Field(
        default=None, description="Why nothing was written"
    )
    code: Literal["record-unreadable"] | Missing = None
    record: str | Missing = Field(default=None, description="The id of the record that can't be read")


class Accepted(_Sent):
    """The body of a 202, with which a command is accepted on a route whose mode is async, or either with
    Prefer: respond-async. Location names its status. A retry gets the same 202."""

    status: Literal["accepted"]
    position: Position = Field(description="In the command stream")
    command: RecordId
    sequence: Sequence | Missing = Field(
        default=None, description="Its number among its aggregate's commands, on a route with aggregate"
    )


class CommandError(_Sent):
    type: str
    message: str


class CommandStatus(_Sent):
    command: RecordId
    status: Literal["accepted", "in-flight", "succeeded", "failed", "unknown", "dead-lettered"] = Field(
        description="failed and unknown are followed by another attempt; succeeded is the end, and so is dead-lettered "
        "unless an operator retries the command."
    )
    position: Position | Missing = Field(default=None, description="In the command stream, while the 202 is kept")
    sequence: Sequence | Missing = Field(
        default=None, description="Its number among its aggregate's commands, while the 202 is kept"
    )
    attempt: Annotated[int, Field(ge=1)] | Missing = Field(
        default=None, description="The number of the last attempt that was begun"
    )
    detail: str | Missing = None
    result: OriginalResult | Missing = None
    error: CommandError | OriginalResult | Missing = None


class RecordShape(_Sent):
    """Times are in seconds; null is what isn't known, or isn't there yet."""

    id: RecordId
    state: State
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


class UnreadableRecord(_Sent):
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


class RecordList(_Sent):
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


class RecordIds(_Sent):
    ids: list[RecordId]


class Resolved(_Sent):
    id: RecordId
    resolution: Literal["resolved"]
    state: Literal["absent", "succeeded", "failed"]


class AuditLine(_Sent):
    at: AwareDatetime | None
    operator: str = Field(description="The token's name, or user@host; empty for a token without a name")
    what: str
    done: str
    reason: str
    process: str = Field(description="The host and process that did it")


class AuditList(_Sent):
    lines: list[AuditLine]
    kept: int = Field(description="How many are kept: the last 1,000, until 30 days after the last one")


class DecidedShape(_Sent):
    route: str = Field(description="The pattern, * for the default one")
    decision: str = Field(description="As in oncegate_requests_total")
    mode: Literal["enforced", "shadow"]
    count: int


class EndedShape(_Sent):
    route: str = Field(description="The pattern, * for the default one")
    outcome: Literal["succeeded", "failed", "unknown", "released"] = Field(description="As in oncegate_attempts_total")
    count: int


class DecisionList(_Sent):
    since: AwareDatetime
    seconds: float = Field(
        description="How long that is ago: up to a minute more, or less where it has not run for so long"
    )
    process: str = Field(description="The host and process that answers")
    decisions: list[DecidedShape]
    outcomes: list[EndedShape] | Missing = Field(default=None, description="Of the attempts that ended in that time")


class RefusedRoute(_Sent):
    route: str = Field(description="The pattern, * for the default one")
    count: Annotated[int, Field(ge=1)]
    decisions: dict[str, int] = Field(
        description="By problem; mismatch-warned: a replay, although the payload was another one (on_mismatch = warn)"
    )


class RefusedCaller(_Sent):
    caller: CallerDigest | None = Field(
        description="Its digest, as records' ids have it behind the colon; null where it was refused before that was known"
    )
    count: Annotated[int, Field(ge=1)]
    routes: list[RefusedRoute]


class RefusedList(_Sent):
    since: AwareDatetime
    seconds: float = Field(
        description="How long that is ago: up to a minute more, or less where it has not run for so long"
    )
    process: str = Field(description="The host and process that answers")
    refused: Annotated[int, Field(ge=0)] = Field(description="All that were refused in that time")
    others: Annotated[int, Field(ge=0)] = Field(
        description="How many of them are not listed: of callers behind the limit, or of callers who gave their place in a "
        "minute's bounded table to another one"
    )
    callers: list[RefusedCaller]


class ProcessShape(_Sent):
    name: str = Field(description="host/pid, as in records and audit lines; a worker's as in streams/")
    kind: str = Field(description="gateway or worker (of commands)")
    gateway: str = Field(description="What all processes of one gateway have in common: the name of the first one")
    version: str
    build: str = Field(description="The commit, and whether it is compiled")
    configuration: str = Field(description="The digest of its settings")
    reads: str = Field(description="A worker's stream and consumer; empty for a gateway")
    started: AwareDatetime | None
    last_seen: AwareDatetime | None = Field(description="When it last kept its entry, which it does every 10 s")
    silent_for: float = Field(description="The same in seconds. One of 30 s is not listed any more")


class ProcessList(_Sent):
    processes: list[ProcessShape] = Field(description="At most 1,000")
    minutes: int = Field(description="Of how many minutes decisions are")
    decisions: list[DecidedShape] = Field(description="Of all gateways that are up, the most frequent first")
    decisions_of: list[str] = Field(description="These gateways")
    complete: bool = Field(description="Whether those are all: of each gateway the 100 most frequent are counted")
    differences: list[str] = Field(
        description="Where two run different configurations, versions or builds: a line each"
    )


class CachePart(_Sent):
    """A server, a file or a database; a member that isn't known, or that it doesn't have, is left out."""

    name: str | Missing = None
    used_bytes: int | Missing = None
    limit_bytes: int | Missing = Field(default=None, description="0: none")
    policy: str | Missing = Field(default=None, description="maxmemory-policy")
    persistence: str | Missing = Field(default=None, description="Redis: aof, rdb or none. Others: in words")
    last_save: str | Missing = Field(
        default=None, description="Redis: how the last write of its AOF, or its last RDB, ended"
    )
    records: int | Missing = Field(default=None, description="memory: how many there are")


class CacheShape(_Sent):
    kind: str = Field(description="memory, redis, sqlite, postgresql")
    url: str = Field(description="Without credentials")
    state: Literal["available", "read-only", "unavailable"]
    failed: str | None = Field(description="Why it could not be looked at")
    parts: list[CachePart]
    advice: list[str] = Field(description="What oncegate check advises about it")


class SettingShape(_Sent):
    name: str = Field(description="The way to it: idempotency.ttl, routes.0.path")
    value: Any = Field(description="null: it is not set, or left out")
    source: str = Field(description="default, command line, a variable, or a file and its line")
    secret: bool = Field(description="Whether it is set, and its value left out")


class SettingList(_Sent):
    configuration: Digest = Field(description="The digest of what is in effect")
    process: str = Field(description="The host and process that answers")
    settings: list[SettingShape]


class ReloadedShape(_Sent):
    configuration: Digest = Field(description="The digest of what is in effect")
    after_restart: list[str] = Field(description="Settings that have changed, and take effect with a restart")


class Find(_Received):
    key: Annotated[str, Field(min_length=1, max_length=1000)] | Missing = Field(
        default=None, description="As it is sent, quoted or bare; without: all that the caller has sent."
    )
    caller: list[Annotated[str, Field(examples=["Authorization: Bearer ..."])]] | None = Field(
        default=None, description="The caller's header lines; without: every caller."
    )


class Change(_Received):
    reason: Annotated[str, Field(max_length=MOST_REASON, pattern=f"^{REASON.pattern}$")] = Field(
        default="", description="Kept with the record or the command, and logged, beside the operator's name"
    )


class Release(Change):
    force: bool = Field(default=False, description="Also while the attempt is running. It runs on all the same")
    attempt: Annotated[int, Field(ge=0, description="The attempt that was looked at; 0: any")] = 0


class _Finding(_Received):
    outcome: Literal["succeeded", "failed"] = Field(alias="as")
    status: Annotated[int, Field(ge=200, le=599)] | None = Field(
        default=None, description="What retries get; a success needs one"
    )
    headers: Lines = []
    body: str = ""
    body_encoding: Literal["text", "base64"] = "text"
    ttl: Annotated[float, Field(gt=0, le=MOST_SECONDS)] | None = Field(
        default=None, description="Seconds; without: the longest of any route"
    )


class Outcome(_Finding, Release):
    pass


class OfUnknown(_Received):
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


class UnknownChanged(_Sent):
    until: AwareDatetime
    scanned: int = Field(description="How many records this answer has looked at")
    found: int = Field(description="How many of them were meant")
    resolved: int
    refused: int = Field(description="Those that others have changed between the look and the change")
    left: int = Field(description="Of unknown outcome, but not at until already, or they don't say since when")
    cursor: str
    complete: bool = Field(description="Whether those were all; else it goes on with cursor, empty or not, and until")


class Counts(_Sent):
    unread: int | None = Field(description="null: Redis can't tell")
    pending: int
    dead: int
    trimmed: int = Field(description="Dead letters that were too many or too old, and are gone")


class DeadLetter(_Sent):
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


class DeadLetterList(_Sent):
    dead_letters: list[DeadLetter]
    counts: Counts
    after: str = Field(description="Empty where those were all")


class CommandShape(_Sent):
    """All that is known of a command: its two records, as in records/, and its dead letters."""

    command: str | None
    consumer: str
    aggregate: str | None = Field(description="As in dead letters, while its entry or a letter is there")
    sequence: Sequence | None = Field(description="The same, also while its 202 is kept")
    submission: dict[str, Any] | None
    execution: dict[str, Any] | None
    dead_letters: list[DeadLetter]
    complete: bool = Field(description="Whether all dead letters were looked at for its own: the newest 10,000 are")


class Discarded(_Sent):
    id: Position
    command: str | None


class Retried(Discarded):
    entry: Position = Field(description="Its id in the stream, from now on")


class StreamWorker(_Sent):
    name: str
    pending: int = Field(description="Entries that it holds")
    silent_for: float = Field(description="Seconds since it last spoke to Redis")


class StreamGroup(_Sent):
    name: str = Field(description="The consumer")
    lag: int | None = Field(description="Entries that it has not read; null: Redis can't tell")
    pending: int = Field(description="Read, and not acknowledged")
    oldest_at: AwareDatetime | None = Field(description="When the oldest was added that it has not done with")
    workers: list[StreamWorker] = Field(description="At most 100, those that hold most first")
    more_workers: int


class StreamShape(_Sent):
    stream: str
    consumer: str = Field(description="The consumer that the routes of this gateway name")
    length: int = Field(description="All entries, those included that no consumer needs any more")
    oldest_at: AwareDatetime | None = Field(description="When the oldest of them was added")
    dead: int
    trimmed: int = Field(description="Dead letters that were too many or too old, and are gone")
    groups: list[StreamGroup] = Field(description="None: nobody has begun to read it")


class StreamList(_Sent):
    streams: list[StreamShape]


LetterGroupId = Annotated[str, Field(pattern=f"^{GROUP.pattern}$")]


class LetterGroupShape(_Sent):
    group: LetterGroupId
    reason: str
    error_type: str | None
    error: str | None = Field(description="Its first line, in which numbers and ids are #")
    count: int
    newest_at: AwareDatetime | None
    oldest_at: AwareDatetime | None
    example: Position = Field(description="The newest of its dead letters")
    routes: list[str] = Field(description="At most five")


class LetterGroupList(_Sent):
    groups: list[LetterGroupShape] = Field(description="At most 100, the largest first")
    scanned: int = Field(description="How many dead letters were looked at, from the newest on")
    complete: bool = Field(description="Whether those were all")
    others: int = Field(description="Letters in groups that are not among these")


class GroupChanged(_Sent):
    changed: int
    unread: int = Field(description="Those that stay: their consumer reads the stream no more")
    more: bool = Field(description="Whether there may be more of the group: an answer changes 1,000 at most")


class RetriedList(_Sent):
    retried: list[Retried]
    unread: list[Position] = Field(description="Those that stay: their consumer reads the stream no more")
    complete: bool = Field(description="Whether these are all of that id: the newest 10,000 dead letters are looked at")


class DiscardedList(_Sent):
    discarded: list[Discarded]
    complete: bool = Field(description="Whether these are all of that id: the newest 10,000 dead letters are looked at")
