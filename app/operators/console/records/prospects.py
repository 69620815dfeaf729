"""A retry's prospects: what the request of a record would get now, in words, and the command line that sends it."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from oncegate.app.operators.console.words import seconds


def route_of(record: Mapping[str, Any], routes: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The rules in effect that the record's request is under now; ``None`` where its route is no longer there."""
    found = [
        each
        for each in routes
        if each["path"] == record["route"] and (not each["methods"] or record["method"] in each["methods"])
    ]
    return found[0] if found else None


def prospect(record: Mapping[str, Any], route: Mapping[str, Any] | None) -> str:
    """The answer that the same request under the same key gets now, in words."""
    state, again = record["state"], f"It is executed again, as attempt {record['attempt'] + 1}."
    if state == "in-flight":
        return "409 in-flight, while the attempt runs; or its answer, where Prefer: wait lets it wait for that."
    if state == "succeeded" and record["submission"]:
        return f"The same 202 as before, for another {seconds(record['expires_in'])}."
    if state == "unreadable":
        return "500 record-unreadable: nothing is executed."
    if route is None:
        return "Not known: the route that it came by is not among those in effect."
    kept = f"status {record['status']}" if record["status"] else "its outcome"
    if state == "succeeded" or (state == "failed" and route["on_error"] == "replay"):
        if route["on_duplicate"] == "error":
            return f"409 duplicate, with what was kept ({kept}), for another {seconds(record['expires_in'])}."
        return f"What was kept ({kept}), replayed, for another {seconds(record['expires_in'])}."
    if state == "failed":
        return f'{again} (on_error = "retry")'
    if route["on_unknown"] == "retry":
        return f'{again} (on_unknown = "retry"): if the first one was executed after all, that is twice.'
    return "409 outcome-unknown: nothing is executed until somebody resolves or releases it."


def command_line(record: Mapping[str, Any], route: Mapping[str, Any] | None, address: str) -> str:
    """A curl that sends the request again. Its key, caller and body are not in a record: they have to be put in."""
    pattern = record["route"] or "/PATH"
    path = pattern if pattern.startswith("/") else "/PATH"
    header = "Idempotency-Key" if route is None else route["header"]
    words = ["curl", "-si", "-X", record["method"] or "POST", address + path]
    words += ["-H", f"{header}: KEY", "-H", "Authorization: CALLER", "--data-binary", "@BODY"]
    return shlex.join(words)
