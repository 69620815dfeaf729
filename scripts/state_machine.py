"""Prints docs/state-machine.md: the law of records as a diagram and a table, from `TRANSITIONS`."""

import sys

from oncegate.cache.record import State
from oncegate.cache.transitions import TRANSITIONS, Transition

HEAD = """\
# The state machine of a record

Generated from `TRANSITIONS` in [cache/transitions.py](../cache/transitions.py) by `scripts/docs`: change the table there.

A record is what is kept under one caller's idempotency key. Every cache moves records only as this table allows, and one
suite of tests walks every row against each cache. What the words mean: [terminology](terminology.md).
"""
ENDS = """
`absent` is the lack of a record. A claim, a completion and a release are atomic, and fenced by the owner token that each
claim brings: a late owner can neither complete nor release its successor's record. Purging and outlasting are Redis's alone.
"""


def main() -> None:
    """Write the page to standard output."""
    sys.stdout.write("\n".join([HEAD, *_diagram(), "", *_table(), ENDS.rstrip("\n"), ""]))


def _diagram() -> list[str]:
    arrows: dict[tuple[State, State], list[str]] = {}
    for row in TRANSITIONS:
        for target in _in_order(row):
            arrows.setdefault((row.source, target), []).append(row.event.value)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> absent", '    state "in-flight" as in_flight']
    for (source, target), events in arrows.items():
        lines.append(f"    {_id(source)} --> {_id(target)}: {', '.join(events)}")
    return [*lines, "```"]


def _table() -> list[str]:
    lines = ["| from | event | to | where |", "| --- | --- | --- | --- |"]
    for row in TRANSITIONS:
        targets = ", ".join(target.value for target in _in_order(row))
        lines.append(f"| {row.source.value} | {row.event.value} | {targets} | {row.guard} |")
    return lines


def _in_order(row: Transition) -> list[State]:
    return [state for state in State if state in row.targets]


def _id(state: State) -> str:
    return state.value.replace("-", "_")


if __name__ == "__main__":
    main()
