"""The stages of a request, and which functions are whose.

`STAGES` maps a module, a class or a function, spelled ``MODULE``, ``MODULE:CLASS`` or ``MODULE:CLASS.FUNCTION``, to its stage;
a folder of modules ends with ``.``. The narrowest that fits a function counts. A function that none fits is an error, as is an
entry that names nothing: tests/loadtests/test_budget.py.
"""

from collections.abc import Iterable
from functools import cache

from loadtests.functions import BENEATH, defined
from loadtests.processes import BenchError

FLOOR = "event loop and sockets"
OTHER = "other packages, and the app"
STAGES: dict[str, tuple[str, ...]] = {
    "bytes in": (
        "app.server.connection",
        "app.server.flow",
        "app.server.",
    ),
    "head": (
        "app.server.parser",
        "app.server.head",
        "app.server.request",
        "app.server.followed",
        "app.server.usual",
        "app.server.scope",
        "app.http1",
    ),
    "match": (
        "app.gateway.fast_path:FastPath",
        "middleware.http.",
        "middleware.http.enter",
        "middleware.http.door",
        "middleware.rules.policies",
        "middleware.rules.policy",
        "middleware.rules.paths.path_pattern",
        "middleware.rules.paths.readings",
        "middleware.rules.share",
    ),
    "identify": (
        "middleware.http.identity",
        "middleware.http.keyed_request",
        "middleware.rules.keys.key",
        "middleware.rules.prefer",
        "middleware.rules.versions",
        "middleware.rules.headers.request_id",
        "middleware.rules.errors",
    ),
    "fingerprint": (
        "middleware.rules.keys.key:fingerprint",
        "middleware.rules.keys.key:forgiving",
        "middleware.rules.keys.digests",
    ),
    "claim packed": (
        "middleware.http.exchange:Exchange.admit",
        "middleware.admission.",
        "middleware.admission.admission",
        "middleware.admission.request",
        "middleware.admission.limits.slots",
        "middleware.admission.limits.callers",
        "cache.redis.",
        "cache.redis.calls:ClaimCall",
        "cache.redis.calls:_claim_terms",
        "cache.redis.calls:RedisCalls",
        "cache.redis.calls:_packed",
        "cache.flight",
        "cache.layout",
        "cache.record",
        "cache.trace",
    ),
    "commands sent": (
        "cache.redis.scripts",
        "cache.redis.connection.",
        "cache.redis.connection.pipe",
        "cache.redis.connection.send",
        "cache.redis.calls",
        "cache.memory.",  # the store in the process instead
    ),
    "reply read": (
        "cache.redis.connection.pipe:PipelinedConnection.data_received",
        "cache.redis.connection.pipe:PendingReply",
        "cache.redis.connection.faults",
        "cache.errors",
        "cache.redis.calls:ClaimCall.read",
        "cache.redis.calls:CallbackCall.answered",
        "cache.codec",
        "cache.flight:decode_flight",
        "cache.ready_lines",
        "middleware.http.exchange:Exchange.on_claimed",
        "middleware.admission.admission:Admissions.admitted",
        "middleware.admission.gate",
    ),
    "attempt": (
        "middleware.http.exchange",
        "middleware.http.asgi_driver",
        "middleware.http.app_run",
        "middleware.http.asgi",
        "middleware.http.observed.exchange",
        "app.gateway.fast_path",
        "app.gateway.passing",
        "middleware.admission.attempt",
        "middleware.admission.in_flight",
        "middleware.admission.lease",
        "middleware.admission.buffers",
    ),
    "command appended": (
        "cache.redis.streams.",
        "app.commands.",
        "middleware.http.exchange:Exchange.submission",
        "app.gateway.fast_path:CallbackDriver._begin_submission",
        "app.gateway.fast_path:CallbackDriver._on_submitted",
    ),
    "head to the upstream": (
        "app.field_lines",
        "app.last_head",
        "app.http1:RequestWriter",
        "app.http1:connection_options",
        "app.http1:with_options",
        "app.http1:TrustedPeers",
        "app.upstream.pool",
        "app.upstream.forward",
        "app.upstream.connection:UpstreamConnection.begin",
        "app.upstream.connection:UpstreamConnection.send",
        "app.upstream.connection:UpstreamConnection.write",
        "app.upstream.connection:UpstreamConnection.is_stale",
        "app.upstream.response:ResponseReader.expect",
    ),
    "response read": (
        "app.upstream.connection",
        "app.upstream.response",
        "app.upstream.response_head",
        "app.upstream.forward:Forwarder.take",
        "app.upstream.forward:Forwarder.lines",
        "app.upstream.forward:Forwarder.headers",
    ),
    "outcome": (
        "middleware.outcome.responses",
        "middleware.http.capture",
        "middleware.http.exchange:Exchange.on_response",
        "middleware.http.exchange:Exchange._settle",
        "middleware.admission.attempt:Attempt.settled",
        "middleware.admission.attempt:Attempt.settle",
        "cache.fields",
        "cache.transitions",
    ),
    "record encoded": (
        "cache.codec:encode",
        "cache.ready_lines:ready_texts",
        "cache.ready_lines:_text_of",
        "cache.encryption",
        "cache.trace:Trace.ended",
        "cache.trace:trace_of",
    ),
    "completion packed": (
        "cache.redis.calls:OutcomeCall",
        "cache.redis.calls:_outcome_terms",
        "middleware.admission.attempt:Attempt.write_outcome",
        "middleware.admission.attempt:Attempt._write",
        "middleware.admission.attempt:Attempt._written",
    ),
    "answer written": (
        "app.server.request:InboundRequest.respond",
        "app.server.request:InboundRequest.write_head",
        "app.server.request:InboundRequest._framed_head",
        "app.server.request:InboundRequest._head_lines",
        "app.server.request:InboundRequest._framed",
        "app.server.request:InboundRequest._frame_open_end",
        "app.server.request:InboundRequest.send",
        "app.server.request:InboundRequest.finish",
        "app.server.connection:InboundConnection.write",
        "app.server.connection:InboundConnection.answered",
        "app.server.connection:InboundConnection._begin_waiting",
        "app.server.flow:Unsent",
        "middleware.outcome.responses:replay",
        "middleware.outcome.responses:replay_as_sent",
        "middleware.outcome.responses:executed",
        "middleware.outcome.responses:bypassed",
        "middleware.outcome.responses:date",
        "middleware.outcome.responses:_date",
        "middleware.outcome.problems",
        "middleware.outcome.problem_kinds",
        "middleware.http.keyed_request:KeyedRequest.executed",
        "middleware.http.keyed_request:KeyedRequest._answer",
        "middleware.http.keyed_request:KeyedRequest.answer_by",
        "middleware.http.enter:Bypass.answered",
    ),
    "timers": (
        "middleware.admission.limits.deadlines",
        "cache.redis.connection.pipe:PipelinedConnection._set_timer",
        "cache.redis.connection.pipe:PipelinedConnection._on_timer",
        "app.server.connection:InboundConnection._idle",
        "app.server.connection:InboundConnection._on_deadline",
        "app.upstream.pool:Upstream._sweep",
        "app.upstream.lasting",
        "app.upstream.forward:Forwarder.watch",
    ),
    "metrics": (
        "app.telemetry.",
        "logging",
        "app.factory",
        "middleware.http.keyed_request:KeyedRequest.observed",
        "middleware.admission.shared",
    ),
    FLOOR: (
        BENEATH,
        "asyncio",
        "app.gateway_server",
        "app.serve",
        "uvloop",
        "start",  # modules that are imported while requests are counted
        "app.operators.",  # a heartbeat may come while they are
        "app.turns",
        "cache.store:processes_key",
        "app.settings.",
        "app.version",
        "middleware.outcome.instants",
        "app.reload.",
        "app.replacement.",
    ),
    OTHER: (),
}
"""Packages beside oncegate (FastAPI, the standard library, an app's module) that no stage names are `OTHER`."""
ORDER = tuple(STAGES)
_BY_ENTRY = {entry: stage for stage, entries in STAGES.items() for entry in entries}


@cache
def of(function: str) -> str:
    """The stage of a function, as `functions.named` spells it. Raises `BenchError` where it is oncegate's, and has none."""
    for entry in _wider(function):
        if entry in _BY_ENTRY:
            return _BY_ENTRY[entry]
    if ":" in function:
        raise BenchError(f"{function} has no stage: loadtests/stages.py")
    return OTHER


def _wider(function: str) -> list[str]:
    """The entries that would fit it, the narrowest first."""
    module, _, name = function.partition(":")
    parts, folders = name.replace(".<locals>", "").split("."), module.split(".")
    within = [f"{module}:{'.'.join(parts[:end])}" for end in range(len(parts), 0, -1)] if name else []
    return [*within, module, *(".".join(folders[:end]) + "." for end in range(len(folders) - 1, 0, -1))]


def missing(entries: Iterable[str] = tuple(_BY_ENTRY)) -> list[str]:
    """Entries that name no module, class or function that there is: what was renamed, or is gone."""
    return [entry for entry in entries if _is_ours(entry) and not _is_there(entry)]


def _is_ours(entry: str) -> bool:
    return entry.partition(".")[0] in ("app", "middleware", "cache")


def _is_there(entry: str) -> bool:
    module, _, name = entry.partition(":")
    if module.endswith("."):
        return any(each.startswith(module) for each in defined())
    return module in defined() and (not name or name in defined()[module])
