"""Writes the table of problems in docs/problems.md anew, from the code. With ``--check``: fails unless it is up to date."""

import sys
from pathlib import Path

from oncegate.middleware.outcome.problems import KINDS

PAGE = Path(__file__).parent.parent / "docs" / "problems.md"
BEGIN, END = "| slug | status | title | retryable |\n| --- | --- | --- | --- |\n", "\n## Retry layers"


def main() -> int:
    """The exit code."""
    head, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    rows = ""
    for slug, kind in KINDS.items():
        again = "; ".join(filter(None, ["yes" if kind.retryable else "no", kind.unless]))
        rows += f"| [`{slug}`](#{slug}) | {kind.status} | {kind.title} | {again} |\n"
    written = head + begin + rows + end + tail
    if "--check" in sys.argv:
        return int(written != PAGE.read_text("utf-8"))
    PAGE.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
