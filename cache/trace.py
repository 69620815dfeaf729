"""The trace of an attempt as members of a JSON object: see oncegate.cache.codec. Every part of it may be missing."""
# Compiled: docs/decisions/0012-compiled.md

from dataclasses import replace
from typing import Any, Final

import orjson

from oncegate.cache.record import DEFAULT_ROUTE, MAX_GATEWAY_BYTES, MAX_NOTE_BYTES, MAX_ROUTE_BYTES, NO_TRACE, Trace

_METHODS: Final = {"POST": "P", "PATCH": "A", "PUT": "U", "DELETE": "D"}
"""Those that are spelled in one character: memory counts."""
_SPELLED: Final = {letter: method for method, letter in _METHODS.items()}


def add_trace(members: dict[str, Any], trace: Trace, *, begun: bool = True) -> None:
    """Add the members of ``trace``; with ``begun``, when it began."""
    if trace.gateway:
        members["g"] = _cut(trace.gateway, MAX_GATEWAY_BYTES)
    if trace.method:
        members["m"] = _METHODS.get(trace.method) or _cut(trace.method, MAX_ROUTE_BYTES)
    if trace.route and trace.route != DEFAULT_ROUTE:
        members["r"] = _cut(trace.route, MAX_ROUTE_BYTES)
    if trace.begun_at_ms and begun:
        members["b"] = trace.begun_at_ms
    if trace.took_ms is not None:
        members["d"] = trace.took_ms
    if trace.note:
        members["n"] = _cut(trace.note, MAX_NOTE_BYTES)


def _cut(text: str, most: int) -> str:
    if len(text) <= most and text.isascii():
        return text
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def read_trace(data: bytes) -> Trace:
    """The trace that stands by itself in ``data``. What can't be read is no trace: a record must not fail for the want of one."""
    if not data:
        return NO_TRACE
    try:
        members = orjson.loads(data)
    except ValueError:
        return NO_TRACE
    return trace_of(members) if isinstance(members, dict) else NO_TRACE


def trace_of_outcome(head: dict[str, Any]) -> Trace:
    """The trace in the head of a response."""
    trace = trace_of(head)
    return trace if trace.took_ms is None else replace(trace, begun_at_ms=head["t"] - trace.took_ms)


def trace_of(members: dict[str, Any]) -> Trace:
    """The trace that ``members`` are. What is of another type is not known."""
    gateway, begun, took, note, method, route = (members.get(name) for name in "gbdnmr")
    return Trace(
        gateway if isinstance(gateway, str) else "",
        begun if type(begun) is int else 0,  # true is no number
        took if type(took) is int else None,
        note if isinstance(note, str) else "",
        _SPELLED.get(method, method) if isinstance(method, str) else "",
        route if isinstance(route, str) else DEFAULT_ROUTE if isinstance(method, str) else "",
    )
