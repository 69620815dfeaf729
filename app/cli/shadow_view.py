"""Prints what was observed, as tables for people."""

from collections.abc import Mapping
from typing import Any

from oncegate.app.cli.terminal import Columns, console, moment, print_table

_ROWS = 20
"""Of a table that is shown; --json has all."""
_REQUESTS: Columns = {"route": "route", "method": "method", "decision": "decision", "requests": ("count", str)}
_WITHOUT: Columns = {
    "route": "route",
    "method": "method",
    "without a key": lambda row: f"{row['count']} of {row['of']}",
}
_REFUSED: Columns = {
    "route": "route",
    "problem": lambda row: f"{row['status']} {row['decision']}",
    "got instead": lambda row: _status(row["upstream_status"]),
    "requests": ("count", str),
}
_REUSED: Columns = {"caller": "caller", "route": "route", "requests": ("count", str)}
_TWICE: Columns = {
    "route": "route",
    "would have been": "decision",
    "first, then": lambda row: f"{_status(row['first_status'])}, {_status(row['status'])}",
    "a replay differs in": lambda row: _differs(row),
    "requests": ("count", str),
    "records": lambda row: " ".join(row["records"][:1]),
}
_HEADERS: Columns = {"route": "route", "header": "header", "requests": ("count", str)}
_TABLES: tuple[tuple[str, str, Columns], ...] = (
    ("requests", "Enforcement would have decided", _REQUESTS),
    ("without_keys", "Without a key", _WITHOUT),
    ("refused", "Would have been refused", _REFUSED),
    ("reused", "Callers that reuse keys (key-reused; the caller's digest, as in records' ids)", _REUSED),
    ("executed_twice", "Executed twice", _TWICE),
    ("differing_headers", "Headers in which a replay would differ (drop_headers)", _HEADERS),
)


def print_report(document: Mapping[str, Any]) -> None:
    """Print what was observed, a table for each kind of finding that there is."""
    span = f", {moment(document['from'])} to {moment(document['until'])}" if document["from"] else ""
    console().print(f"{document['observed']} requests were observed{span}.", markup=False)
    for name, title, columns in _TABLES:
        rows = document[name]
        if not rows:
            continue
        console().print(f"\n{title}:", markup=False)
        print_table(columns, rows[:_ROWS], folded=("records",))
        if len(rows) > _ROWS:
            console().print(f"and {len(rows) - _ROWS} more: --json", markup=False)
    if document["not_told_apart"]:
        console().print(f"\n{document['not_told_apart']} more were counted, and are not told apart.", markup=False)


def _status(status: int | None) -> str:
    return str(status) if status else "?"


def _differs(row: Mapping[str, Any]) -> str:
    if row["first_status"] is None:
        return "?"
    return ", ".join(row["differs"]) or "nothing"
