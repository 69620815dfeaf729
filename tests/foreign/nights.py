"""An operator at night: with a browser alone, from an alert to its end; clicks are counted, and fields, and seconds.

What is clicked is found as a person finds it, by the words on it, and is pressed by a mouse in its middle.
"""

import json
import time
from collections.abc import Callable

from testing.waiting import PATIENCE
from tests.foreign.chrome import Tab

_VISIBLE = """
(() => {{
    const words = {words};
    const named = each => (each.innerText || each.getAttribute("aria-label") || "").replace(/\\s+/g, " ").trim();
    const found = Array.from(document.querySelectorAll({selector})).filter(each => each.checkVisibility());
    return found.find(each => named(each) === words) || found.find(each => named(each).includes(words));
}})()
"""
"""The first element that a selector chooses and that reads so; one whose whole text it is comes before others."""
_FIELD = """
(() => {{
    const label = {label};
    return label && (label.control || label.querySelector("input, select, textarea"));
}})()
"""
_ROWS = """
(() => {{
    const of = each => each.caption?.innerText ?? each.closest("[aria-label]").getAttribute("aria-label");
    const table = Array.from(document.querySelectorAll("table")).find(each => of(each).startsWith({name}));
    const text = row => Array.from(row.cells, each => each.innerText);
    const row = each => Object.fromEntries(text(each).map((cell, at) => [text(table.tHead.rows[0])[at], cell]));
    return table ? Array.from(table.tBodies[0].rows, row) : [];
}})()
"""


class Night:
    """One of an operator's nights, in ``tab``, which begins with an alert: now."""

    def __init__(self, tab: Tab) -> None:
        self.clicks = 0
        self.fields = 0
        """Those that were filled in."""
        self.loads = 0
        """Pages that were loaded anew, to see what has happened meanwhile."""
        self._tab = tab
        self._began = time.monotonic()

    def log_in(self, console: str, token: str) -> None:
        """Open the console, and log in."""
        self._tab.open(console)
        self.fill("Operator's token", token)
        self.click("Log in")
        assert self.title() == "Overview"

    def click(self, words: str) -> None:
        """Click the link or the button that reads so, which leads to a page."""
        self.clicks += 1
        self._tab.click_on(_visible("a, button", words))

    def fill(self, label: str, text: str) -> None:
        """Click into the field of that label, and type."""
        self.clicks += 1
        self.fields += 1
        self._tab.click_on(_FIELD.format(label=_visible("label", label)), leads_on=False)
        self._tab.type(text)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Load the page again and again until it shows what is awaited."""
        until = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < until, f"{what} is never seen: {self.text()}"
            self.loads += 1
            self._tab.open(str(self._tab.run("location.href")))

    def title(self) -> str:
        """The heading of the page."""
        return str(self._tab.run("document.querySelector('h1').innerText"))

    def text(self) -> str:
        """What is to be read on the page, each run of white space as one blank."""
        return " ".join(str(self._tab.run("document.querySelector('main').innerText")).split())

    def figure(self, name: str) -> str:
        """The figure under a name."""
        found = f"Array.from(document.querySelectorAll('dt')).find(each => each.innerText === {json.dumps(name)})"
        return str(self._tab.run(f"{found}.nextElementSibling.innerText"))

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of the table whose name begins so, each by the headings of its columns; none where there is no such table."""
        found: list[dict[str, str]] = self._tab.run(_ROWS.format(name=json.dumps(name)))
        return found

    def over(self) -> str:
        """What it took, in one line."""
        wrong = self._tab.wrong()
        assert wrong == [], wrong
        seconds = time.monotonic() - self._began
        return f"{self.clicks} clicks, {self.fields} fields, {self.loads} loads, {seconds:.1f} s"


def _visible(selector: str, words: str) -> str:
    return _VISIBLE.format(selector=json.dumps(selector), words=json.dumps(words))
