"""SVG that reads in dark and in light and to a screen reader, without a script. What is the same is drawn the same."""

from collections.abc import Iterable
from xml.sax.saxutils import escape

from testing.pictures.events import Act, Event, Message, Run

_STYLE = """\
text{font:13px system-ui,sans-serif;fill:#1f2328;text-anchor:middle}
.name{font-weight:600}.start{text-anchor:start}
.box{fill:#f6f8fa;stroke:#57606a}.act{fill:#ddf4ff;stroke:#0969da}.fault{fill:#ffebe9;stroke:#cf222e}
.life{stroke:#8c959f;stroke-dasharray:3 4}.arrow{stroke:#1f2328;stroke-width:1.4;fill:none}
.no{stroke:#cf222e;stroke-dasharray:6 4}
.back{fill:#ffffff}.head{fill:#1f2328}.redhead{fill:#cf222e}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.box{fill:#161b22;stroke:#8b949e}.act{fill:#0c2d6b;stroke:#58a6ff}
.fault{fill:#67060c;stroke:#ff7b72}.life{stroke:#6e7681}.arrow{stroke:#e6edf3}.no{stroke:#ff7b72}.back{fill:#0d1117}
.head{fill:#e6edf3}.redhead{fill:#ff7b72}}"""
_COLUMN, _ROW, _TOP, _MARGIN = 270, 38, 66, 110
_CHARACTER = 6.9
"""Pixels that a character takes at most, on average."""


def document(title: str, description: str, width: int, height: int, parts: Iterable[str]) -> str:
    """A whole picture of ``parts``. ``title`` and ``description`` are what a screen reader reads."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect class="back" width="{width}" height="{height}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A line of text at a point."""
    return f'<text{_class(kind)} x="{x:g}" y="{y:g}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "box") -> str:
    """A box with round corners."""
    return f'<rect{_class(kind)} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'


def sequence(run: Run) -> str:
    """A sequence diagram of ``run``: a line for each party, and below each other what happened.

    Times are left out, so that each run in which the same happens makes the same picture.
    """
    at = {party: _MARGIN + number * _COLUMN for number, party in enumerate(run.parties)}
    height = _TOP + _ROW * (len(run.events) + 1)
    rows = [(_TOP + _ROW * number, event) for number, event in enumerate(run.events, 1)]
    ends = {event.party: y for y, event in rows if isinstance(event, Act) and event.ends}
    parts = []
    for party, x in at.items():
        parts += [
            f'<path class="life" d="M{x} {_TOP}V{ends.get(party, height - 8)}"/>',
            box(x - 95, _TOP - 32, 190, 30),
            text(x, _TOP - 12, party, "name"),
        ]
    parts.append(text(_MARGIN - 95, 20, run.title, "name start"))
    for y, event in rows:
        parts += _message(event, y, at) if isinstance(event, Message) else _act(event, y, at)
    return document(run.title, described(run.events), 2 * _MARGIN + _COLUMN * (len(at) - 1), height, parts)


def described(events: Iterable[Event]) -> str:
    """``events`` in words, a sentence for each."""
    return " ".join(
        f"{event.source} to {event.target}: {event.text}."
        if isinstance(event, Message)
        else f"{event.party}: {event.text}."
        for event in events
    )


def _message(event: Message, y: int, at: dict[str, int]) -> list[str]:
    start, end = at[event.source], at[event.target]
    back = -9 if end > start else 9
    middle = end - (end - start) / abs(end - start) * _COLUMN / 2  # within the last column that it crosses
    line, head = ("arrow no", "redhead") if event.bad else ("arrow", "head")
    width = len(event.text) * _CHARACTER
    return [
        f'<path class="{line}" d="M{start} {y}H{end + back / 2:g}"/>',
        f'<path class="{head}" d="M{end} {y}l{back} -4v8z"/>',
        f'<rect class="back" x="{middle - width / 2:g}" y="{y - 20}" width="{width:g}" height="16"/>',
        text(middle, y - 7, event.text),
    ]


def _act(event: Act, y: int, at: dict[str, int]) -> list[str]:
    x, width = at[event.party], max(60, len(event.text) * _CHARACTER + 24)
    return [
        box(x - width / 2, y - 23, width, 26, "fault" if event.bad else "act"),
        text(x, y - 6, event.text),
    ]


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
