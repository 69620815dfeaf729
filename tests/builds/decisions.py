"""Calls about decisions and their answers, for `tests.builds.driver`."""

import asyncio
from typing import Any

from oncegate import IdempotencyMiddleware, IdempotencySettings, MemoryCache, Route
from oncegate.cache.codec import encode
from oncegate.cache.record import Record, State, StoredResponse
from oncegate.middleware.admission.gate import decide
from oncegate.middleware.outcome import problems
from oncegate.middleware.outcome import responses as respond
from oncegate.middleware.rules.headers.request_id import REQUEST_ID
from oncegate.middleware.rules.keys.key import fingerprint, pick, record_key, scope_parts
from oncegate.middleware.rules.policy import compile_policy
from testing.inside import entries_of

PRINT, OTHER = b"f" * 16, b"f" * 10 + b"g" * 6


def gate(state: str, response: Any, mismatch: bool, warn: bool, raises: bool) -> Any:
    """What a record is to a request."""
    answer = None if response is None else StoredResponse(*response)
    record = Record(State(state), bytes(16), OTHER if mismatch else PRINT, 1, answer)
    return decide(record, PRINT, warn_on_mismatch=warn, raise_on_duplicate=raises)


def problem(slug: str, detail: str, given: dict[str, Any]) -> Any:
    """A problem as an answer."""
    return problems.problem(slug, detail, **given)


def result(status: int, headers: Any, body: Any, completed_at_ms: int) -> Any:
    """A stored response within a problem."""
    found = problems.original_result(StoredResponse(status, headers, body, completed_at_ms))
    return (
        problems.problem("duplicate", "", docs_url="d", extra=found),
        problems.challenge([b"a", b"b"]),
        problems.plain_error(),
    )


def responses(status: int, headers: list[tuple[bytes, bytes]], body: Any, settings: dict[str, Any], left: int) -> Any:
    """A response as it is given, kept and given again."""
    policy = compile_policy(IdempotencySettings(**settings))
    kept = respond.stored(status, headers, body, policy.unstored)._replace(completed_at_ms=0)
    given = [
        respond.executed(headers, lines, status, policy=policy, key_line=b"k", recorded=is_)
        for is_ in (True, False)
        for lines in (b"", b"".join(b"\r\n%b: %b" % field for field in headers))
    ]
    again = respond.replay(kept, left, policy=policy, key_line=b"k")
    return kept, given, again, respond.bypassed(b"", headers), respond.stored_exception().headers


async def exchange(settings: dict[str, Any], stored: Any, damage: Any, sent: Any, answer: Any) -> Any:
    """What a request gets, whose key has a record already, perhaps damaged, and what the record is afterwards.

    ``stored``: a record's state, response, age of its lease and whether the fingerprint is another's; ``sent``: field lines and
    body; ``answer``: what the app does.
    """
    headers, body = sent
    lines = [(b"idempotency-key", b"k"), *headers]
    rules = IdempotencySettings(**settings)
    cache = MemoryCache(clock=lambda: 1000.0)
    added_lines: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        added_lines.append(repr([line for line in scope["headers"] if line not in lines]))
        if isinstance(answer, str):
            raise {"value": ValueError, "os": OSError, "type": TypeError}[answer]("as asked")
        status, given, chunks = answer
        await send({"type": "http.response.start", "status": status, "headers": given})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    policy = compile_policy(rules)
    key = record_key("default", "k", scope_parts(pick(lines, policy.wanted), policy.scope_names))
    if stored is not None:
        state, response, left_ms, mismatch, submission = stored
        mark = OTHER if mismatch else fingerprint("POST", b"/", b"", body, as_json=rules.fingerprint == "json")
        held = None if response is None else StoredResponse(*response)
        data = encode(Record(State(state), b"t" * 16, mark, 3, held, retention_ms=5000, submission=submission))
        at, flip = damage
        if flip:
            data = data[: at % len(data)] + bytes([data[at % len(data)] ^ flip]) + data[at % len(data) + 1 :]
        entries_of(cache).put(key, data, 1_000_000 + left_ms)
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    got: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        got.append(message)

    observed: list[Any] = []
    routes = [Route(path="/*")]
    there = IdempotencyMiddleware(
        app, cache=cache, settings=rules, routes=routes, observe=lambda seen: observed.append(seen._replace(seconds=0))
    )
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": lines,
        "http_version": "1.1",
        REQUEST_ID: "the-same",
    }
    raised = ""
    try:
        await there(scope, receive, send)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    slots = there.admissions.in_flight.slots.taken, await there.drain(1)
    after = entries_of(cache).get(key, 1_000_000)
    kept = None if after is None else (after.data[:2], after.data[34:38], after.expires_ms)
    return got, raised, added_lines, observed, slots, kept
