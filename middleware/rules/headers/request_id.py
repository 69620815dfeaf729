"""The ids by which one request is followed: its own, taken from ``X-Request-Id`` or made here, and that of its trace.

A request gets its id when something is first said of it: in a problem, in a line of the log, or from the start where each is
followed. What nobody says anything of needs none.
"""
# Compiled: docs/decisions/0012-compiled.md

import os
import re
from collections.abc import Collection, Iterable, MutableMapping
from functools import lru_cache
from itertools import count
from typing import Any, Final

from oncegate.middleware.rules.headers.added_headers import field
from oncegate.middleware.rules.headers.trace_context import trace_context

REQUEST_ID: Final = "oncegate.request_id"
"""The place of a request's id in its ASGI scope, once it has one."""
HEADER: Final = field("X-Request-Id")

_is_well_formed: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch
_words: Final = re.compile(rb'[^\s",;=]+').findall
_numbers: Final = count(1)


@lru_cache(maxsize=1)
def _process() -> str:
    return os.urandom(6).hex()


# A forked worker makes ids of its own.
if hasattr(os, "register_at_fork"):  # Windows has none, and never forks
    os.register_at_fork(after_in_child=_process.cache_clear)


def made() -> str:
    """An id that no other request has."""
    return f"{_process()}-{next(_numbers):08x}"


def request_id(scope: MutableMapping[str, Any], unshown: Collection[bytes]) -> str:
    """The id of a request: the one in its ``scope``, or that of its one well-formed ``X-Request-Id``, or a new one.

    What stands in one of its headers that are to be ``unshown`` (`oncegate.middleware.rules.policy.Policy.unshown`) is no id:
    some clients send their key under both names.
    """
    known = scope.get(REQUEST_ID)
    if known is not None:
        return str(known)
    headers = scope["headers"]
    taken = _only(headers, HEADER)
    if taken is None or _is_well_formed(taken) is None or _stands_in(taken, headers, unshown):
        chosen = made()
    else:
        chosen = taken.decode("ascii")
    scope[REQUEST_ID] = chosen
    return chosen


def trace_id(scope: MutableMapping[str, Any]) -> str:
    """The id of the trace that a request says it is part of (W3C Trace Context, ``traceparent``); empty where it says none."""
    found = trace_context(scope["headers"])
    return "" if found is None else found.trace_id


def ids(scope: MutableMapping[str, Any] | None, unshown: Collection[bytes]) -> dict[str, str]:
    """The ids in a log's line about a request: ``request_id``, and ``trace_id`` where there is one. Nothing without a
    ``scope``.
    """
    if scope is None:
        return {}
    found = {"request_id": request_id(scope, unshown)}
    trace = trace_id(scope)
    if trace:
        found["trace_id"] = trace
    return found


def _only(headers: Iterable[Any], name: bytes) -> bytes | None:
    values = [line[1] for line in headers if line[0] == name]
    return bytes(values[0]) if len(values) == 1 else None


def _stands_in(taken: bytes, headers: Iterable[Any], unshown: Collection[bytes]) -> bool:
    return any(taken in _words(line[1]) for line in headers if line[0] in unshown)
