"""Prints commands and dead letters, as tables for people."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from oncegate.app.cli.terminal import Columns, ago, beginning, console, duration, moment, print_details, print_table
from oncegate.app.cli.usage import to_paste

Members = Mapping[str, Any]


def print_letters(listing: Members) -> None:
    """A table of dead letters, and how much else there is."""
    _print_numbered(_OF_LETTERS, listing["dead_letters"], folded=("error", _NUMBER), none="No dead letters.")
    if listing["after"]:
        console().print(f"There are more: --after {listing['after']}", markup=False)
    _print_counts(listing["counts"])


def print_pending(listing: Members) -> None:
    """A table of what workers hold."""
    _print_numbered(_OF_ENTRIES, listing["pending"], folded=(_NUMBER,), none="Nothing is pending.")
    _print_counts(listing["counts"])


def _print_numbered(columns: Columns, rows: Sequence[Members], *, folded: Collection[str], none: str) -> None:
    """A table, in which their aggregates and numbers come last, where some of ``rows`` have one."""
    are_numbered = any(one["sequence"] is not None for one in rows)
    print_table({**columns, _NUMBER: _number} if are_numbered else columns, rows, folded=folded, none=none)


_NUMBER = "aggregate"
_OF_LETTERS: Columns = {
    "dead letter": "id",
    "command": "command",
    "consumer": "consumer",
    "reason": "reason",
    "attempts": "attempts",
    "died": ("died_at", moment),
    "error": lambda letter: _cut(_error(letter)),
}
_OF_ENTRIES: Columns = {
    "entry": "entry",
    "command": "command",
    "state": "state",
    "attempt": "attempt",
    "worker": "worker",
    "silent for": ("silent_for", duration),
    "accepted": ("accepted_at", moment),
}


def _number(about: Members) -> str:
    """The aggregate that a command is about, and its number among those about it."""
    if about["sequence"] is None:
        return "-"
    return f"{about['aggregate'] or '?'} #{about['sequence']}"


def print_command(command: Members) -> None:
    """All that is known of one command."""
    lines = [("command", command["command"] or "none: the entry could not be read")]
    if command["sequence"] is not None:
        lines.append(("aggregate", _number(command)))
    lines.append(("submission", _submission(command["submission"])))
    lines.append((f"by {command['consumer']}", _execution(command["execution"])))
    for letter in command["dead_letters"]:
        lines += [("", ""), *_letter(letter)]
    if not command["complete"]:
        lines += [("", ""), ("others?", "not all dead letters were looked at, but the newest alone")]
    if command["dead_letters"]:
        lines += [("", ""), ("again?", to_paste(f"oncegate commands retry {command['dead_letters'][0]['id']}"))]
    print_details(lines)


def print_retried(done: Members) -> None:
    """Which dead letters were put back, and their new entries."""
    _print_others(done)
    for each in done["retried"]:
        console().print(f"{each['id']} is {each['entry']} in the stream now", markup=False)
    console().print(f"{len(done['retried'])} to be processed again.", markup=False)


def print_discarded(done: Members) -> None:
    """Which dead letters were discarded."""
    _print_others(done)
    for each in done["discarded"]:
        console().print(f"{each['id']} is gone", markup=False)


def _print_others(done: Members) -> None:
    if not done["complete"]:
        console().print("There may be others of that id: not all dead letters were looked at.", markup=False)


def _letter(letter: Members) -> list[tuple[str, str]]:
    lines = [
        ("dead letter", letter["id"]),
        ("reason", f"{letter['reason']}, after {letter['attempts']} attempts by {letter['consumer']}"),
        ("error", _error(letter) or "none"),
        ("died", f"{ago(letter['died_at'])}, on {letter['worker']}"),
        ("accepted", ago(letter["accepted_at"])),
        (
            "request",
            f"{letter['method'] or '-'} {letter.get('target') or letter['path'] or '-'}, {letter['bytes']} bytes",
        ),
    ]
    if letter["sequence"] is not None:
        lines.append(("aggregate", _number(letter)))
    if letter["correlation"]:
        lines.append(("correlation", letter["correlation"]))
    if "body" in letter:
        lines += [("key", letter["key"]), ("body", beginning(letter["body"]))]
    return lines


def _error(letter: Members) -> str:
    return ": ".join(part for part in (letter["error_type"], letter["error"]) if part)


def _submission(record: Members | None) -> str:
    if record is None:
        return "no record: its time is over, or the gateway died before it was written"
    if "attempt" not in record:
        return str(record["state"])
    if not record["submission"]:
        return f"{record['state']}, executed by the gateway itself"
    return f"{record['state']}, {ago(record['began_at'])}"


def _execution(record: Members | None) -> str:
    if record is None:
        return "not begun, or its record's time is over"
    if "attempt" not in record:
        return str(record["state"])
    text = f"{record['state']}, attempt {record['attempt']}, {ago(record['ended_at'] or record['began_at'])}"
    error = record["error"]
    if error:
        text += f": {error.get('type', '')}: {error.get('message', '')}"
    return text


def _print_counts(counts: Members) -> None:
    unread = "some" if counts["unread"] is None else counts["unread"]
    text = f"{unread} not read yet, {counts['pending']} pending, {counts['dead']} dead"
    if counts["trimmed"]:
        text += f"; {counts['trimmed']} more were dead, and are gone: too many, or too old (dead_letter_ttl)"
    console().print(text, markup=False)


def _cut(text: str, most: int = 120) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 4] + " ..."


def print_streams(found: Members) -> None:
    """How each stream stands, and the consumers that read it."""
    for stream in found["streams"]:
        console().print(
            f"{stream['stream']}: {stream['length']} entries, the oldest of {ago(stream['oldest_at'])}; {stream['dead']} dead",
            markup=False,
        )
        print_table(_OF_GROUPS, stream["groups"], folded=(), none="Nobody has begun to read it.")
        workers = [{"group": group["name"], **worker} for group in stream["groups"] for worker in group["workers"]]
        if workers:
            print_table(_OF_WORKERS, workers, folded=())


def print_groups(found: Members) -> None:
    """Dead letters by their error, and how many were looked at."""
    print_table(_OF_ERRORS, found["groups"], folded=("error",), none="No dead letters.")
    text = f"{found['scanned']} dead letters were looked at" + (
        "" if found["complete"] else ", and there are others: --scan"
    )
    if found["others"]:
        text += f"; {found['others']} of them have other errors than these"
    console().print(text, markup=False)


def print_changed(changed: Members, *, done: str) -> None:
    """How many letters of a group were changed."""
    console().print(f"{changed[done]} {done}", markup=False)


_OF_GROUPS: Columns = {
    "consumer": "name",
    "not read yet": ("lag", lambda lag: "some" if lag is None else str(lag)),
    "pending": ("pending", str),
    "oldest": ("oldest_at", moment),
    "workers": lambda group: str(len(group["workers"]) + group["more_workers"]),
}
_OF_WORKERS: Columns = {
    "consumer": "group",
    "worker": "name",
    "holds": ("pending", str),
    "silent for": ("silent_for", duration),
}
_OF_ERRORS: Columns = {
    "group": "group",
    "count": ("count", str),
    "newest": ("newest_at", moment),
    "reason": "reason",
    "error": lambda group: _cut(": ".join(filter(None, (group["error_type"], group["error"]))) or "-"),
    "example": "example",
}
