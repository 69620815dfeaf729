"""The demo's view in the terminal, for who has no browser: what becomes of each request, a line each."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

_MEANING = {
    "first": "executed by the payments service",
    "replayed": "the payments service was not called: this is the first request's response",
    "duplicate": "the payments service was not called: the result is in the error",
    "in-flight": "refused: the first request with this key is still being executed",
    "key-reused": "refused: this key belongs to another request",
    "outcome-unknown": "refused: nobody knows whether the first request was executed",
    "cache-unavailable": "refused: the records can't be reached, so nothing is executed",
    "bypass": "passed on without a key: sent again, it would be executed again",
}
_STYLE = {"first": "bold green", "replayed": "bold cyan", "bypass": "dim"}
_INTRODUCTION = """
The demo is a page: open {page}

A payments service runs on {upstream}, and oncegate in front of it on {url}.
Without a browser, try these in another terminal, one after the other:

  pay            curl -i {url}/payments -H 'Idempotency-Key: order-1' -d '{{"amount": 100}}'
  pay again      curl -i {url}/payments -H 'Idempotency-Key: order-1' -d '{{"amount": 100}}'
  pay otherwise  curl -i {url}/payments -H 'Idempotency-Key: order-1' -d '{{"amount": 999}}'

Also: GET {url}/payments lists what was paid, an amount of 0 is declined, /payments/slow takes 5 seconds.
Records are in {records}.
Listening. What becomes of each request appears here; Ctrl-C ends the demo.
"""


class TerminalView:
    """The demo's output. Rich adds colour on a terminal, and nothing where the output is read by a program."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def introduce(self, **words: str) -> None:
        """Print the addresses, and commands to try. ``words`` are ``page``, ``upstream``, ``url`` and ``records``."""
        self._console.print(_INTRODUCTION.format(**words), markup=False)

    def process(self, name: str, what: str) -> None:
        """Print a line of a process, or about it."""
        self._console.print(Text(f"  {name:<18}{what}", "dim"))

    def decision(self, line: Mapping[str, Any]) -> None:
        """A request's line of the gateway's log."""
        decision, status = line["decision"], line["status"]
        meaning = _MEANING.get(decision, "refused")
        if decision == "first":
            meaning += f" (attempt {line['attempt']})"
            if status >= 400:
                meaning += "; not a success, so the same request again is a new attempt"
        coloured = Text(f"{decision:<17} ", _STYLE.get(decision, "bold yellow"))
        self._console.print(Text.assemble("oncegate  ", coloured, f"{status}  {meaning}"))

    def farewell(self, arrived: int, executed: int) -> None:
        """The service's own count."""
        self._console.print(f"\nPOSTs that reached the payments service: {arrived}. Payments made: {executed}.")
