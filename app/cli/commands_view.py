"""Prints commands and dead letters: as tables for people, as JSON for scripts."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from oncegate.app.cli.terminal import ago, as_document, console, duration, moment, plain, print_table

_STYLES = {
    "succeeded": "green",
    "failed": "yellow",
    "unknown": "bold red",
    "in-flight": "cyan",
    "unreadable": "bold red",
}
MOST_OF_BODY = 2000
Members = Mapping[str, Any]


def show_letters(listing: Members, *, as_json: bool) -> None:
    """A table of dead letters, and how much else there is."""
    if as_json:
        as_document(dict(listing))
        return
    letters, more = listing["dead_letters"], listing["after"]
    out = console()
    if letters:
        print_table(
            _table(
                ("dead letter", "command", "consumer", "reason", "attempts", "died", "error"),
                [
                    (
                        each["id"],
                        each["command"] or "-",
                        each["consumer"],
                        each["reason"],
                        str(each["attempts"]),
                        moment(each["died_at"]),
                        _cut(": ".join(part for part in (each["error_type"], each["error"]) if part)),
                    )
                    for each in letters
                ],
            )
        )
    else:
        out.print("No dead letters.")
    if more:
        out.print(f"There are more: --after {more}", markup=False)
    _show_counts(listing["counts"])


def show_pending(held: Sequence[Members], counts: Members, *, as_json: bool) -> None:
    """A table of what workers hold."""
    if as_json:
        as_document({"pending": list(held), "counts": dict(counts)})
        return
    if held:
        print_table(
            _table(
                ("entry", "command", "state", "attempt", "worker", "silent for", "accepted"),
                [
                    (
                        each["entry"],
                        each["command"] or "-",
                        each["state"],
                        str(each["attempt"]),
                        each["worker"],
                        duration(each["silent_for"]),
                        moment(each["accepted_at"]),
                    )
                    for each in held
                ],
            )
        )
    else:
        console().print("Nothing is pending.")
    _show_counts(counts)


def show_command(command: Members, *, as_json: bool) -> None:
    """All that is known of one command."""
    if as_json:
        as_document(dict(command))
        return
    lines = [("command", command["command"] or "none: the entry could not be read")]
    lines.append(("submission", _submission(command["submission"])))
    lines.append((f"by {command['consumer']}", _execution(command["execution"])))
    for letter in command["dead_letters"]:
        lines += [("", ""), *_letter(letter)]
    if command["dead_letters"]:
        lines += [("", ""), ("again?", f"oncegate commands retry {command['dead_letters'][0]['id']}")]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in lines:
        table.add_row(name, Text(plain(value), _STYLES.get(value.partition(":")[0].partition(",")[0], "")))
    print_table(table)


def show_retried(retried: Sequence[Members], *, as_json: bool) -> None:
    """Print which dead letters were put back, and their new entries."""
    if as_json:
        as_document({"retried": list(retried)})
        return
    for each in retried:
        console().print(f"{each['id']} is {each['entry']} in the stream now", markup=False)
    console().print(f"{len(retried)} to be processed again.", markup=False)


def show_discarded(discarded: Sequence[Members], *, as_json: bool) -> None:
    """Print which dead letters were discarded."""
    if as_json:
        as_document({"discarded": list(discarded)})
        return
    for each in discarded:
        console().print(f"{each['id']} is gone", markup=False)


def _letter(letter: Members) -> list[tuple[str, str]]:
    lines = [
        ("dead letter", letter["id"]),
        ("reason", f"{letter['reason']}, after {letter['attempts']} attempts by {letter['consumer']}"),
        ("error", ": ".join(part for part in (letter["error_type"], letter["error"]) if part) or "none"),
        ("died", f"{ago(letter['died_at'])}, on {letter['worker']}"),
        ("accepted", ago(letter["accepted_at"])),
        (
            "request",
            f"{letter['method'] or '-'} {letter.get('target') or letter['path'] or '-'}, {letter['bytes']} bytes",
        ),
    ]
    if letter["correlation"]:
        lines.append(("correlation", letter["correlation"]))
    if "body" in letter:
        body = letter["body"]
        lines += [("key", letter["key"]), ("body", body[:MOST_OF_BODY] + (" ..." if len(body) > MOST_OF_BODY else ""))]
    return lines


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


def _show_counts(counts: Members) -> None:
    unread = "some" if counts["unread"] is None else counts["unread"]
    text = f"{unread} not read yet, {counts['pending']} pending, {counts['dead']} dead"
    if counts["trimmed"]:
        text += f"; {counts['trimmed']} more were dead, and are gone: too many (max_dead_letters), or too old (dead_letter_ttl)"
    console().print(text, markup=False)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=name != "error")
    for row in rows:
        # Text, not strings: what comes from elsewhere is no markup.
        table.add_row(*[Text(plain(cell), _STYLES.get(cell, "")) for cell in row])
    return table


def _cut(text: str, most: int = 120) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 4] + " ..."
