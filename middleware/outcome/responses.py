"""Responses as they are sent and stored: which headers are added, dropped and kept."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Iterable
from functools import lru_cache
from time import gmtime, strftime, time
from typing import Any, Final

from oncegate.cache.fields import fields_of
from oncegate.cache.record import ReadyResponse, StoredResponse
from oncegate.middleware.outcome.problems import Answer, plain_error
from oncegate.middleware.rules.headers.added_headers import field
from oncegate.middleware.rules.policy import Policy

Headers = list[tuple[bytes, bytes]]
_named: Final = tuple.__new__
"""Makes a named tuple in half the time of its own constructor."""
_time: Final = time  # a module's own name takes no look into a dict, compiled

CACHE_STATUS: Final = field("Cache-Status")
BYPASS: Final = (CACHE_STATUS, b"oncegate; fwd=bypass")
REPLAYED: Final = (field("Idempotent-Replayed"), b"true")
_HIT: Final = b"oncegate; hit; ttl="
_MARKS: Final = b"\r\n%b: %b\r\n%b: %b" % (*REPLAYED, CACHE_STATUS, _HIT)
"""Of a replay, but for the number of seconds."""
_REPLAYED_NAME: Final = REPLAYED[0]
_REPLAYED_LENGTH: Final = len(REPLAYED[0])
_REPLAYED_LINE: Final = b"\r\n%b:" % _REPLAYED_NAME
_BYPASS_LINE: Final = b"\r\n%b: %b" % BYPASS


def executed(
    headers: Headers, lines: bytes, status: int, *, policy: Policy, key_line: bytes, recorded: bool
) -> tuple[Headers, bytes]:
    """The headers of a response that this request's own attempt produced: ours replace the upstream's.

    Where ``lines`` are these ``headers`` as they can be sent, and ours replace none of them, ours are lines, too, behind them.
    ``key_line`` has been judged, so that it ends none.
    """
    own = policy.own_headers
    name, mark = policy.key_names[0], policy.cache_status[status if 0 <= status < 600 else 600] if recorded else BYPASS
    kept = [line for line in headers if line[0] not in own]
    if lines and len(kept) == len(headers):
        return [], b"%b\r\n%b: %b\r\n%b: %b" % (lines, name, key_line, mark[0], mark[1])
    kept.append((name, key_line))
    kept.append(mark)
    return kept, b""


def replay(response: StoredResponse, remaining_ms: int, *, policy: Policy, key_line: bytes) -> Answer:
    """The stored response as another request's answer (Cache-Status: RFC 9211, with the time left in seconds)."""
    headers = [
        *response.headers,
        (policy.key_names[0], key_line),
        REPLAYED,
        (CACHE_STATUS, _HIT + b"%d" % (remaining_ms // 1000)),
    ]
    return Answer(response.status, headers, response.body or b"")


def replay_as_sent(ready: ReadyResponse, remaining_ms: int, policy: Policy, key_line: bytes) -> Answer:
    """The same where its lines are sent as they lie. ``key_line`` has been judged, so that it ends none."""
    lines = b"%b\r\n%b: %b%b%d" % (ready.lines, policy.key_names[0], key_line, _MARKS, remaining_ms // 1000)
    return Answer(ready.status, [], ready.body, lines)


def bypassed(lines: bytes, headers: Iterable[Any]) -> tuple[bytes, Headers]:
    """The ``lines``, where it has such, and headers of a response to a request that was not enforced although its method is.

    Headers are an app's own, which may give its lines as lists.
    """
    if lines:
        if lines.find(_REPLAYED_LINE) < 0:
            return lines + _BYPASS_LINE, []
        headers = fields_of(lines)
    kept: Headers = [line for line in headers if len(line[0]) != _REPLAYED_LENGTH or line[0].lower() != _REPLAYED_NAME]
    kept.append(BYPASS)
    return b"", kept


def stored(status: int, headers: Headers, body: bytes | None, unstored: frozenset[bytes]) -> StoredResponse:
    """The stored form of a response, with its end-to-end headers that aren't ``unstored`` (`Policy.unstored`)."""
    given: Any = headers
    line: tuple[bytes, ...]  # compiled, one of two parts would be taken apart, and made anew to be kept
    kept: list[tuple[bytes, ...]] = []
    named: list[bytes] = []
    for line in given:
        if line[0] not in unstored:
            kept.append(line)
        elif line[0] == b"connection":  # always one of them
            named += [token.strip().lower() for token in line[1].split(b",")]
    if named:
        names = frozenset(named)
        kept = [line for line in kept if line[0] not in names]
    return _named(StoredResponse, (status, tuple(kept), body, int(_time() * 1000)))


def stored_exception() -> StoredResponse:
    """The stored form of an exception out of an in-process app: the answer that servers give to it."""
    status, content_type, body = plain_error()
    headers = ((b"content-type", content_type), (b"content-length", b"%d" % len(body)))
    return StoredResponse(status, headers, body, now_ms())


def now_ms() -> int:
    """Unix time in milliseconds, for people: it decides nothing."""
    return int(time() * 1000)


def date() -> tuple[bytes, bytes]:
    """A Date header (RFC 9110 section 6.6.1)."""
    return b"date", _date(int(time()))


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return strftime("%a, %d %b %Y %H:%M:%S GMT", gmtime(second)).encode()
