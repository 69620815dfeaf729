"""``oncegate demo``: runs a payments service with the gateway in front of it, and shows each request live."""

import asyncio
import signal

from rich.console import Console
from rich.text import Text

from oncegate.app.demo.upstream import Payments, serving
from oncegate.app.serve import serve
from oncegate.app.server.accept import bind
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.middleware.admission.observe import Observation

FIRST_PORT = 8080
PORTS_TO_TRY = 100

_MEANING = {
    "first": "executed by the payments service",
    "replayed": "the payments service was not called: this is the first request's response",
    "duplicate": "the payments service was not called: the result is in the error",
    "in-flight": "refused: the first request with this key is still being executed",
    "key-reused": "refused: this key belongs to another request",
    "outcome-unknown": "refused: nobody knows whether the first request was executed",
    "bypass": "passed on without a key: sent again, it would be executed again",
}
_STYLE = {"first": "bold green", "replayed": "bold cyan", "bypass": "dim"}
_INTRODUCTION = """
A payments service runs on {upstream}, and oncegate in front of it on {url}.
Try these in another terminal, one after the other:

  pay            curl -i {url}/payments -H 'Idempotency-Key: order-1' -d '{{"amount": 100}}'
  pay again      curl -i {url}/payments -H 'Idempotency-Key: order-1' -d '{{"amount": 100}}'
  pay otherwise  curl -i {url}/payments -H 'Idempotency-Key: order-1' -d '{{"amount": 999}}'

Also: GET {url}/payments lists what was paid, an amount of 0 is declined, /payments/slow takes 5 seconds.
Listening. What becomes of each request appears here; Ctrl-C ends the demo.
"""


def run(port: int | None = None) -> int:
    """Run the demo on ``port`` (``None``: 8080, or the next free one) until Ctrl-C; returns the exit code."""
    view = _View(Console(highlight=False, soft_wrap=True))
    payments = Payments(view.upstream)
    with serving(payments) as upstream:
        settings = GatewaySettings(
            upstream=upstream,
            port=_free_port() if port is None else port,
            log_level="warning",
            public=("metrics", "policy", "docs"),
            shutdown_timeout=10,
        )

        def announce(url: str) -> None:
            # Unlike a server, it ends with its terminal.
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, signal.raise_signal, signal.SIGTERM)
            view.introduce(upstream, url)

        code = serve(settings, observe=view.decision, announce=announce)
    view.farewell(payments)
    return code


class _View:
    """The demo's output. Rich adds colour on a terminal, and nothing where the output is read by a program."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def introduce(self, upstream: str, url: str) -> None:
        self._console.print(_INTRODUCTION.format(upstream=upstream, url=url), markup=False)

    def upstream(self, line: str) -> None:
        self._console.print(Text(f"  payments service   {line}", "dim"))

    def decision(self, seen: Observation, _: object) -> None:
        meaning = _MEANING.get(seen.decision, "refused")
        if seen.decision == "first":
            meaning += f" (attempt {seen.attempt})"
            if seen.status >= 400:
                meaning += "; not a success, so the same request again is a new attempt"
        decision = Text(f"{seen.decision:<16}", _STYLE.get(seen.decision, "bold yellow"))
        self._console.print(Text.assemble("oncegate  ", decision, f"{seen.status}  {meaning}"))

    def farewell(self, payments: Payments) -> None:
        made = len(payments.payments)
        self._console.print(f"\nPOSTs that reached the payments service: {payments.calls}. Payments made: {made}.")


def _free_port() -> int:
    for port in range(FIRST_PORT, FIRST_PORT + PORTS_TO_TRY):
        try:
            sockets = bind("127.0.0.1", port)
        except OSError:
            continue
        for bound in sockets:
            bound.close()
        return port
    return 0
