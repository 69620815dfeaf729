"""Prints records, as tables for people."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console

from oncegate.app.cli.terminal import Columns, ago, beginning, console, duration, moment, print_details, print_table
from oncegate.app.cli.usage import to_paste
from oncegate.cache.record import State

if TYPE_CHECKING:
    from oncegate.app.operators.records.purge import Purged


def print_list(listing: dict[str, Any]) -> None:
    """A table of records, and the option that lists more of them."""
    cursor = listing["cursor"]
    none = "No such records." if not cursor else "None so far."
    print_table(_COLUMNS, listing["records"], folded=_COLUMNS.keys() - {"record", "state", "began"}, none=none)
    if cursor:
        console().print(f"There is more: --cursor {cursor}", markup=False)


def _request(record: dict[str, Any]) -> str:
    """The request as a line; of a record that can't be read nothing is known of it."""
    return " ".join(filter(None, map(record.get, ("method", "route")))) or "-" * ("attempt" in record)


_COLUMNS: Columns = {
    "record": "id",
    "state": "state",
    "attempt": "attempt",
    "began": ("began_at", moment),
    "took": ("took", duration),
    "request": _request,
    "gateway": "gateway",
    "status": "status",
    "gone in": ("expires_in", duration),
}


def print_records(found: dict[str, Any]) -> None:
    """All that is known of each of some records."""
    for number, record in enumerate(found["records"]):
        if number:
            console().print()
        print_details(_lines(record))


def _lines(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines about one record, in the order in which a person looks for them."""
    if record["state"] == "unreadable":
        return [("record", record["id"]), ("state", "unreadable: damaged, or of a newer version")]
    lines = [("record", record["id"]), ("state", _state(record))]
    submission = record.get("submission", False)
    if submission:
        lines.append(
            ("of", f"a submission; what became of the command: {to_paste('oncegate commands show ' + record['id'])}")
        )
    lines.append(("attempt", _attempt(record)))
    lines.append(("began", ago(record["began_at"])))
    if record["took"] is not None or record["ended_at"]:
        took = f", after {duration(record['took'])}" if record["took"] is not None else ""
        lines.append(("ended", ago(record["ended_at"]).removesuffix("-") + took if record["ended_at"] else took[2:]))
    if record.get("method"):
        lines.append(("request", f"{record['method']}, by the rules of {record['route']}"))
    lines += [("gateway", record["gateway"] or "not known"), ("upstream", _upstream(record))]
    if record.get("fingerprint"):
        lines.append(("fingerprint", record["fingerprint"]))
    if record.get("trace_id"):
        lines.append(("trace", record["trace_id"]))
    if record["note"]:
        lines.append(("note", record["note"]))
    lines.append(("gone in", duration(record["expires_in"])))
    if submission and record["state"] == State.UNKNOWN:
        lines.append(("a retry", "is accepted anew, which is harmless: copies of a command count as one"))
        return lines
    lines.append(("a retry", _RETRY[record["state"]]))
    if record["state"] == State.UNKNOWN:
        lines.append(
            ("executed?", to_paste(f"oncegate keys resolve --record {record['id']} --status 201 --body @FILE"))
        )
        lines.append(("not?", to_paste(f"oncegate keys release --record {record['id']}")))
    return lines


_RETRY = {
    "in-flight": "is answered 409 in-flight, or waits (Prefer: wait)",
    "succeeded": "is answered with this response",
    "failed": 'is executed again, or is answered with this error where on_error = "replay"',
    "unknown": 'is answered 409 outcome-unknown, or is executed again where on_unknown = "retry"',
}


def _state(record: dict[str, Any]) -> str:
    left = record["lease_left"]
    if record["lapsed"]:
        return f"unknown: its gateway has been silent since its lease ran out {duration(-left)} ago"
    if record["state"] == State.IN_FLIGHT:
        return f"in-flight: its lease runs for another {duration(left)}, and is renewed while its gateway lives"
    return str(record["state"])


def _attempt(record: dict[str, Any]) -> str:
    found = record["found"]
    return f"{record['attempt']}" + (f", after one that was {found}" if found and found != State.ABSENT else "")


def _upstream(record: dict[str, Any]) -> str:
    if record["status"] is None:
        return "no answer is known"
    response = record.get("response")
    if response is None:
        return f"{record['status']}; --response shows what it answered"
    body = response.get("body")
    if response.get("body_omitted"):
        text = "a body that was not kept"
    elif response.get("body_encoding"):
        text = "a body that is no text"
    else:
        whole = body if isinstance(body, str) else orjson.dumps(body).decode()
        text = beginning(whole)
    return f"{response['status']}  {text}".rstrip()


@contextmanager
def purging(err: Console) -> Iterator[Callable[["Purged"], None]]:
    """Shows a purge's progress, where ``err`` is a terminal. How many records there are isn't known beforehand."""
    with progress(err) as show:
        yield lambda purged: show(f"{purged.seen} looked at, {purged.found} found, {purged.removed} removed")


@contextmanager
def progress(err: Console) -> Iterator[Callable[[str], None]]:
    """Shows how far something is, in words, where ``err`` is a terminal."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as shown:
        task = shown.add_task("0 looked at", total=None)
        yield lambda words: shown.update(task, description=words)


def print_purged(purged: dict[str, Any]) -> None:
    """How many records a purge found and removed."""
    text = f"{purged['found']} found, {'none' if purged['dry_run'] else purged['removed']} removed"
    if purged["unfinished"]:
        text += f"; {purged['unfinished']} in flight or of unknown outcome are left (--force)"
    if purged["unreadable"]:
        text += f"; {purged['unreadable']} can't be read and are left"
    console().print(text, markup=False)


def print_resolution(resolved: dict[str, Any]) -> None:
    """Print that a record was resolved, and what that means."""
    state = resolved["state"]
    meaning = "the key is free: a retry is executed" if state == "absent" else f"a retry {_RETRY[state]}"
    console().print(f"{resolved['id']} is {state} now; {meaning}", markup=False)


def print_changed_unknown(changed: dict[str, Any]) -> None:
    """How many records of unknown outcome were found and changed."""
    text = f"{changed['found']} found, {'none' if changed['dry_run'] else changed['resolved']} changed"
    if changed["refused"]:
        text += f"; {changed['refused']} were not: others have changed them meanwhile"
    if changed["left"]:
        text += f"; {changed['left']} are left: they have become unknown since, or don't say since when"
    console().print(text, markup=False)
