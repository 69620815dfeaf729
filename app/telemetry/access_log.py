"""The access log: one line for each request, with what became of it and how long it took where.

A line holds nothing secret: the record's id, never a key; a path without its query; no field of a head but the request's and
the trace's ids, and in the combined format the user agent, and a referrer without its query. What a client has sent is escaped,
and cut where it is long, so that a line is one line, and no longer than a pipe takes in one piece.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Mapping
from functools import lru_cache
from time import gmtime, monotonic, strftime, time
from typing import Any, Final

import orjson

from oncegate.app.http1 import TrustedPeers
from oncegate.app.settings.access_log import MALFORMED, OPERATIONS, PASS, Selection
from oncegate.app.telemetry.line_writer import LineWriter
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.observe import SHADOW, Observation
from oncegate.middleware.admission.request import AdmissionRequest
from oncegate.middleware.rules.headers.request_id import trace_id

LINE: Final = "oncegate.line"
"""The place of a request's `Line` in its ASGI scope."""
CLIENT_CLOSED: Final = 499
"""The status of a request whose client has left before its response began, as nginx has it: none of HTTP's."""
WHOLE: Final = "whole"
CLIENT_LEFT: Final = "client-left"
BROKEN_OFF: Final = "broken-off"
"""How a response ended: its last byte was written, its client had gone by then, or it broke off (as with its upstream)."""
_LONGEST_PATH: Final = 1000
_LONGEST_TEXT: Final = 300
_ESCAPED: Final = {code: f"\\x{code:02X}" for code in (*range(32), ord('"'), ord("\\"), *range(127, 256))}
_ZONE: Final = "+0000"


class Line:
    """The line of one request, while it is answered. Times are by the monotonic clock, 0.0 where it has not come to that.

    ``began``: its head was there; ``handed_on``: its answer was begun; ``last``: so far the last of its response was there to
    be sent. ``attempt``: the one that it ran itself. ``is_written``: nothing is added any more.
    """

    __slots__ = (
        "at",
        "at_cache",
        "attempt",
        "began",
        "bytes_in",
        "bytes_out",
        "handed_on",
        "is_written",
        "last",
        "observation",
        "slug",
        "status",
    )

    def __init__(self) -> None:
        self.at = time()
        self.began = monotonic()
        self.handed_on = self.last = 0.0
        self.bytes_in = self.bytes_out = self.status = 0
        self.observation: Observation | None = None
        self.slug = ""
        self.attempt: Attempt | None = None
        self.at_cache = 0.0
        self.is_written = False

    def seconds_at(self, now: float) -> tuple[float | None, float | None]:
        """The seconds at the cache and at the upstream, ``None`` where it was not there."""
        attempt, observation = self.attempt, self.observation
        if observation is None or not observation.record:
            return None, max(0.0, (self.last or now) - self.handed_on) if self.handed_on else None
        if attempt is None:
            return self.at_cache, None
        settled = attempt.settled_at or now
        took = settled - attempt.lease.began
        recorded = max(0.0, (self.last or now) - settled)
        if attempt.claim.submission:  # its command went to the cache's streams
            return self.at_cache + took + recorded, None
        return self.at_cache + recorded, took


def observed(observation: Observation, request: Any) -> None:
    """Note what was decided about a request under enforcement, or with its method, where it has a line.

    One that was only observed has passed: what it would have met has a line in another log.
    """
    line = request.scope.get(LINE)
    if line is not None and observation.mode != SHADOW:
        line.observation = observation
        line.attempt = getattr(request, "attempt", None)
        admission: AdmissionRequest | None = getattr(request, "admission", None)
        line.at_cache = 0.0 if admission is None else admission.at_cache


def note_problem(scope: Mapping[str, Any], slug: str) -> None:
    """Note the problem by which a request is answered that passes through, where it has a line."""
    line = scope.get(LINE)
    if line is not None:
        line.slug = slug


class AccessLog:
    """An access log in the ``form`` of `AccessLogFormat`, whose lines go to the writer ``lines``: as `follow` says, which comes
    first.
    """

    def __init__(self, form: str, lines: LineWriter) -> None:
        self.lines = lines
        self._written_as = _combined if form == "combined" else _json

    def follow(
        self,
        *,
        selection: Selection | None,
        trusted: TrustedPeers,
        prefix: str,
        ops_port: int,
        methods: frozenset[str],
        unshown: frozenset[bytes],
    ) -> None:
        """Go by these rules from now on.

        ``selection`` says which requests have a line. ``trusted`` are the proxies whose word counts for who the client is. Under
        ``prefix``, and on ``ops_port``, are the operations; ``methods`` are those that may be under enforcement. ``unshown``:
        `oncegate.middleware.rules.policies.Policies.unshown`.
        """
        self.unshown = unshown
        self._selection = selection
        self._trusted = trusted
        self._prefix = prefix
        self._ops_port = ops_port
        self._methods = methods

    def end(self, line: Line, scope: dict[str, Any], request_id: str, *, traced: bool, ended: str) -> None:
        """A request is over, as ``ended`` says: write its line. ``traced``: it may name a trace. Later calls do nothing."""
        if line.is_written:
            return
        line.is_written = True
        now = monotonic()
        status = line.status or CLIENT_CLOSED
        decision = self._decision(line, scope, status)
        seconds = now - line.began
        at_cache, at_upstream = line.seconds_at(now)
        observation, line.attempt = line.observation, None  # by its lease it refers to the scope, which has us
        if self._selection is not None and not self._selection.takes(decision, status, seconds):
            return
        path: bytes = scope["raw_path"]
        members = {
            "time": _instant(line.at),
            "client": self._client(scope),
            "protocol": f"HTTP/{scope['http_version']}",
            "method": scope["method"],
            "path": _cut(path.decode("latin-1"), _LONGEST_PATH),
            "route": observation.route if observation is not None else None,
            "status": status,
            "bytes_in": line.bytes_in,
            "bytes_out": line.bytes_out,
            "decision": decision or None,
            "record": (observation.record or None) if observation is not None else None,
            "attempt": (observation.attempt or None) if observation is not None else None,
            "ms": _ms(seconds),
            "cache_ms": _ms(at_cache),
            "upstream_ms": None if decision == OPERATIONS else _ms(at_upstream),
            "request_id": request_id,
            "trace_id": (trace_id(scope) or None) if traced else None,
            "ended": ended,
        }
        self.lines.write(self._written_as(members, line.at, scope))

    def refuse(self, status: int, client: str) -> None:
        """A message that is no request was refused."""
        if self._selection is not None and not self._selection.takes(MALFORMED, status, 0.0):
            return
        at = time()
        members: dict[str, Any] = dict.fromkeys(_MEMBERS)
        members |= {
            "time": _instant(at),
            "client": client,
            "status": status,
            "bytes_in": 0,
            "bytes_out": 0,
            "decision": MALFORMED,
            "ended": WHOLE,
        }
        self.lines.write(self._written_as(members, at, {}))

    def _decision(self, line: Line, scope: dict[str, Any], status: int) -> str:
        observation = line.observation
        if observation is not None:
            return observation.decision
        if line.slug:
            return line.slug
        path, server = scope["path"], scope["server"]
        below = path == self._prefix or path.startswith(self._prefix + "/")
        if below or (self._ops_port and server and server[1] == self._ops_port):
            return OPERATIONS
        # Its client has left before it was known whether it has a key.
        return "" if status == CLIENT_CLOSED and scope["method"] in self._methods else PASS

    def _client(self, scope: dict[str, Any]) -> str:
        client = scope["client"]
        if client is None:
            return ""
        peer: str = client[0]
        return self._trusted.client_of(peer, scope["headers"])


_MEMBERS: Final = (
    *("time", "client", "protocol", "method", "path", "route", "status", "bytes_in", "bytes_out"),
    *("decision", "record", "attempt", "ms", "cache_ms", "upstream_ms", "request_id", "trace_id", "ended"),
)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else int(seconds * 1_000_000) / 1000  # `round` takes four times as long


def _instant(at: float) -> str:
    milliseconds = int(at * 1000)
    second = milliseconds // 1000
    return f"{_second(second)}{milliseconds - second * 1000:03d}Z"


@lru_cache(maxsize=2)
def _second(at: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S.", gmtime(at))


@lru_cache(maxsize=2)
def _common_second(at: int) -> str:
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[gmtime(at).tm_mon - 1]
    return strftime(f"%d/{month}/%Y:%H:%M:%S {_ZONE}", gmtime(at))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "..."


def _json(members: dict[str, Any], _at: float, _scope: Mapping[str, Any]) -> bytes:
    return orjson.dumps(members) + b"\n"


def _combined(members: dict[str, Any], at: float, scope: Mapping[str, Any]) -> bytes:
    """The combined format of Apache's and nginx's, and behind it what that has no place for, each with its name."""
    request = "-" if members["method"] is None else f"{members['method']} {members['path']} {members['protocol']}"
    referrer, agent = "-", "-"
    for name, value in scope.get("headers", ()):
        if name == b"referer":
            referrer = _without_secrets(value.decode("latin-1"))
        elif name == b"user-agent":
            agent = value.decode("latin-1")
    sent = f'"{_escaped(request)}" {members["status"]} {members["bytes_out"] or "-"}'
    from_whom = f'"{_cut(_escaped(referrer), _LONGEST_TEXT)}" "{_cut(_escaped(agent), _LONGEST_TEXT)}"'
    head = f"{members['client'] or '-'} - - [{_common_second(int(at))}] {sent} {from_whom}"
    rest = [f"{name}={_escaped(str(members[name]))}" for name in _BEHIND if members[name] is not None]
    return f"{head} {' '.join(rest)}\n".encode("ascii", "backslashreplace")


_BEHIND: Final = (
    *("time", "route", "bytes_in", "decision", "record", "attempt", "ms", "cache_ms", "upstream_ms"),
    *("request_id", "trace_id", "ended"),
)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPED)


def _without_secrets(referrer: str) -> str:
    """A referrer without its query, its fragment and whoever it names."""
    address = referrer.partition("?")[0].partition("#")[0]
    scheme, mark, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}" if mark else address
