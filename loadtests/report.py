"""Results: written as JSON, and from that alone told as a table and drawn as a plot."""

import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from loadtests import machine

console = Console(stderr=True)
WIDTH = 160
"""Columns for tables that go into a file or a pipe."""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings. ``note`` says below it what a reader has to know."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """As a table in Markdown, without the title."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{text}\n\n{self.note}" if self.note else text

    def rich(self) -> RichTable:
        """For a terminal."""
        table = RichTable(*self.head, title=self.title, caption=self.note or None)
        for row in self.rows:
            table.add_row(*row)
        return table


def measured(results: "Results") -> str:
    """When, of what, and whether beside other work: the end of a table's note."""
    load = results.about["machine"]["load_before"]
    busy = "" if load < 2 else f" on a machine that was busy with other work (load {load:g}): its rates say little"
    return f"Measured {results.about['date'][:10]} at `{results.about['commit']}`{busy}."


def _command() -> str:
    """What was typed, without the folder for the results: where somebody keeps them is nobody's business."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if word != "--out" or next(words, None) is None]
    return " ".join(["scripts/bench", *(word for word in kept if not word.startswith("--out="))])


@dataclass
class Results:
    """What one benchmark measured. ``samples`` are the single measurements, ``checks`` the answers that were looked at."""

    bench: str
    settings: dict[str, Any]
    samples: list[dict[str, Any]] = field(default_factory=list)
    checks: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=lambda: {
        "command": _command(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": machine.commit(),
        "machine": machine.describe(),
    })  # fmt: skip

    def write(self, folder: Path) -> Path:
        """Write results.json into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "results.json"
        path.write_text(json.dumps(_rounded(vars(self)), indent=1) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> "Results":
        """What `write` wrote."""
        return cls(**json.loads(path.read_text()))

    def select(self, **wanted: object) -> list[dict[str, Any]]:
        """The samples whose members are as ``wanted``, in the order in which they were taken."""
        return [sample for sample in self.samples if all(sample.get(name) == value for name, value in wanted.items())]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return value


@dataclass(frozen=True)
class Spread:
    """A median, and the smallest and largest of what it is the median of."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Of at least one value."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1])

    def text(self, digits: int = 0) -> str:
        """``median (least-most)``."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f}-{self.most:,.{digits}f})"


def spread(samples: Sequence[dict[str, Any]], name: str, part: str | None = None) -> Spread:
    """Of one figure over ``samples``."""
    return Spread.of(sample[name][part] if part else sample[name] for sample in samples)


def paired(
    ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], name: str, part: str | None = None
) -> Spread:
    """``ours / theirs`` of one figure, round by round: what slows the machine for a while slows both of a pair."""
    other = {sample["round"]: sample for sample in theirs}
    values = []
    for sample in ours:
        match = other[sample["round"]]
        values.append(sample[name][part] / match[name][part] if part else sample[name] / match[name])
    return Spread.of(values)


def errors(results: Results) -> str:
    """One sentence on the errors among all answers."""
    wrong = [sample for sample in results.samples if sample.get("errors")]
    if not wrong:
        return "No request got an error."
    counts: dict[str, int] = {}
    for sample in wrong:
        name = sample.get("server", "the gateway")
        counts[name] = counts.get(name, 0) + sample["errors"]
    return f"Errors, in all: {', '.join(f'{name} {count:,}' for name, count in counts.items())}."


def progress() -> Progress:
    """A bar on standard error, with what is being measured and how long it will still take."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def publish(results: Results, tables: Sequence[Table], folder: Path) -> None:
    """Write results.json and table.md into ``folder``, and show the tables."""
    path = results.write(folder)
    (folder / "table.md").write_text("\n\n".join(f"## {table.title}\n\n{table.markdown()}" for table in tables) + "\n")
    terminal = Console()
    if not terminal.is_terminal:
        terminal = Console(width=WIDTH)
    for table in tables:
        terminal.print(table.rich())
    console.print(f"measured on {machine.summary(results.about['machine'])}", highlight=False)
    console.print(f"written: {path}, and what shows it beside it")
