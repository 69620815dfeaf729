"""Writes anew what docs/problems.md and the code say both: the page's table, from the code; from the page's sections the texts
that gateways show. With ``--check``: fails unless they are up to date.
"""

import sys
import textwrap
from pathlib import Path

from oncegate.middleware.outcome.problem_kinds import KINDS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "problems.md"
TEXTS = ROOT / "app" / "operators" / "pages" / "for_callers" / "problem_texts.py"
BEGIN, END = "| slug | status | title | retryable |\n| --- | --- | --- | --- |\n", "\n## Retry layers"
HEAD = '''"""The texts of docs/problems.md about each problem. Written by scripts/docs: change them there."""

TEXTS = r"""
'''


def main() -> int:
    """The exit code."""
    page = PAGE.read_text("utf-8")
    written = {PAGE: with_table(page), TEXTS: texts(page)}
    if "--check" in sys.argv:
        return int(any(text != path.read_text("utf-8") for path, text in written.items()))
    for path, text in written.items():
        path.write_text(text, "utf-8")
    return 0


def with_table(page: str) -> str:
    """The page with its table."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    rows = ""
    for slug, kind in KINDS.items():
        again = "; ".join(filter(None, ["yes" if kind.retryable else "no", kind.unless]))
        rows += f"| [`{slug}`](#{slug}) | {kind.status} | {kind.title} | {again} |\n"
    return head + begin + rows + end + tail


def texts(page: str) -> str:
    """The module with the page's sections, a problem each."""
    sections = []
    for section in page.split("\n## ")[1:]:
        slug, _, text = section.partition("\n")
        if slug in KINDS:
            lines = textwrap.fill(" ".join(text.split()), 116, break_long_words=False, break_on_hyphens=False)
            sections.append(f"## {slug}\n\n{lines}\n")
    return HEAD + "\n".join(sections) + '"""\n'


if __name__ == "__main__":
    sys.exit(main())
