"""Calls about stored records, for `tests.builds.driver`."""

from dataclasses import replace
from typing import Any

from oncegate.cache import transitions as law
from oncegate.cache.codec import decode, encode, encode_claim
from oncegate.cache.memory.expiry import ExpiringBytes
from oncegate.cache.record import NO_TRACE, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.redis.calls import takeover_codes
from oncegate.cache.transitions import Event, check


def read(data: bytes, remaining_ms: int) -> Any:
    """The record with and without its trace, and what it is written as."""
    record = decode(data, remaining_ms, traced=True)
    plain = decode(data, remaining_ms)
    written = None
    try:
        written = encode(record)
    except ValueError as error:
        written = str(error).encode()
    return record, plain == record, plain.trace, written


def write(state: str, fields: dict[str, Any], response: Any, trace: Any) -> Any:
    """A record's bytes, and the record that they are."""
    found = State(fields.pop("found", "absent"))
    answer = None if response is None else StoredResponse(*response)
    record = Record(State(state), response=answer, trace=Trace(*trace), found=found, **fields)
    data = encode(record)
    again = decode(data, 10**9, traced=True)
    return data, again, again == record, replace(again, attempt=again.attempt + 1)


def claim(token: bytes, fingerprint: bytes, retention_ms: int, trace: Any, submission: bool) -> Any:
    """A claim's bytes."""
    seen = Trace(*trace) if trace else NO_TRACE
    return encode_claim(ClaimRequest(token, fingerprint, 0, retention_ms, trace=seen, submission=submission))


def move(source: str, event: str, target: str) -> Any:
    """What the law says."""
    return check(State(source), Event(event), State(target))


def lawful(name: str, *arguments: Any) -> Any:
    """What the checks of arguments say."""
    if name == "takeover":
        return takeover_codes(frozenset(map(State, arguments)))
    if name == "outcome":
        return law.check_outcome(State(arguments[0]))
    if name == "resolution":
        state, ttl_ms, response = arguments
        return law.check_resolution(state and State(state), ttl_ms, response and StoredResponse(*response))
    return law.check_duration(*arguments)


def expire(steps: list[tuple[str, Any]]) -> Any:
    """What a store of bytes says at each step."""
    held = ExpiringBytes()
    states: list[Any] = []
    for name, arguments in steps:
        states.append((getattr(held, name)(*arguments), len(held), held.size, sorted(held), bool(held)))
    return states
