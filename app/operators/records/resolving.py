"""An operator's resolution of a record: made of what was given, written and reported; one road for the API and the console."""

from collections.abc import Sequence

from oncegate.app.operators.audit import Author, resolved
from oncegate.app.operators.audit_lines import AuditLines, report
from oncegate.app.operators.records.records import NotARecord, Records
from oncegate.cache.fields import HOP_BY_HOP
from oncegate.cache.record import State, StoredResponse
from oncegate.cache.transitions import Resolution, ResolveRequest
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.outcome.results import CONTENTLESS, checked_response
from oncegate.middleware.rules.headers.added_headers import ON_REPLAYS
from oncegate.middleware.rules.policy import OF_THE_MOMENT

MOST_SECONDS = 10 * 366 * 86400.0
"""The longest that a resolved outcome may be kept; as `oncegate.middleware.rules.setting_types.Seconds`."""
WHY_NOT = {
    Resolution.ABSENT: (404, "no such record"),
    Resolution.IN_FLIGHT: (
        409,
        "in flight: its owner is alive; only force does it, and its attempt runs on all the same",
    ),
    Resolution.SETTLED: (409, "its outcome is known: a record that succeeded or failed is left alone"),
    Resolution.OTHER_ATTEMPT: (409, "another attempt is there by now: look again"),
}
"""Why nothing was written, as a status and in words."""
NOT_KEPT = frozenset(name.decode() for name in (*HOP_BY_HOP, *OF_THE_MOMENT, *ON_REPLAYS)) | {"content-length"}
"""Names of header fields, in lower case, that an operator can't give to a response that is kept."""


def resolution(
    state: State,
    *,
    status: int | None,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    ttl: float | None,
    force: bool,
    attempt: int,
) -> ResolveRequest:
    """An operator's finding: the outcome, and the response that retries get for ``ttl`` seconds. Raises `NotARecord`."""
    response = None
    if status is not None:
        response = _response_to_keep(status, headers, body)
    elif state is State.SUCCEEDED or body or headers:
        raise NotARecord("status is missing: a success is answered with one, and so is whatever has a body")
    if ttl is not None and not 0 < ttl <= MOST_SECONDS:
        raise NotARecord("ttl is above 0 seconds, and at most ten years")
    return ResolveRequest(state, response, 0 if ttl is None else max(1, round(ttl * 1000)), force, attempt)


def _response_to_keep(status: int, headers: Sequence[tuple[str, str]], body: bytes) -> StoredResponse:
    """A response as a replay will give it. Raises `NotARecord` for one that no upstream could have sent."""
    for name, _ in headers:
        if name.lower() in NOT_KEPT:
            raise NotARecord(f"{name.lower()} is not kept in a record")
    try:
        given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    except UnicodeEncodeError:
        raise NotARecord("a header holds characters that are not Latin-1") from None
    try:
        response = checked_response(status, given, body, now_ms())
    except ValueError as error:
        raise NotARecord(str(error)) from None
    lines = response.headers
    if body and all(name != b"content-type" for name, _ in lines):
        lines += ((b"content-type", b"application/json"),)
    if status not in CONTENTLESS:
        lines += ((b"content-length", b"%d" % len(body)),)
    return response._replace(headers=lines)


async def resolve_and_report(
    records: Records, audit: AuditLines | None, identifier: str, request: ResolveRequest, author: Author
) -> Resolution:
    """Write a resolution, and the audit line about it where it was written.

    Raises `oncegate.app.operators.records.records.NotARecord`, `oncegate.cache.errors.CacheError`.
    """
    done = await records.resolve(identifier, request, author)
    if done is Resolution.RESOLVED:
        await report(audit, author, f"record {identifier}", resolved(request))
    return done
