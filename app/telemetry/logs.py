"""Logs: one line per event on standard error, JSON for machines and text on a terminal.

Nothing secret gets here: what oncegate logs is built from settings without credentials, record ids, slugs and counts.
"""

import asyncio
import logging
import sys
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

from oncegate.middleware.admission.observe import SHADOW, Observation

log = logging.getLogger("oncegate.request")

QUIET = frozenset({"first", "replayed", "bypass"})
"""Usual decisions: logged at debug. All others are problems, whose ``record`` can be found in the log."""


def configure(level: str, style: Literal["auto", "json", "text"] = "auto") -> None:
    """Send every logger of this process to standard error, uvicorn's and asyncio's too."""
    handler = logging.StreamHandler(sys.stderr)
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(_Text() if text else _json())
    handler.addFilter(_is_no_routine)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its everyday lines (started, waiting, shutting down) only repeat ours.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))


def observed(observation: Observation) -> None:
    """Log one enforced request. One that was observed has a line of its own (`oncegate.middleware.http.shadow`)."""
    if observation.mode == SHADOW:
        return
    level = logging.DEBUG if observation.decision in QUIET else logging.INFO
    if log.isEnabledFor(level):
        log.log(
            level,
            "%s -> %d",
            observation.decision,
            observation.status,
            extra={
                "decision": observation.decision,
                "status": observation.status,
                "attempt": observation.attempt,
                "record": observation.record,
                "route": observation.route,
                "method": observation.method,
                "seconds": round(observation.seconds, 6),
            },
        )


def _json() -> logging.Formatter:
    return JsonFormatter(
        "{asctime}{levelname}{name}{process}{message}",
        style="{",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
    )


class _Text(logging.Formatter):
    """A line for people: what happened, then what it carries."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        carried = [(name, value) for name, value in vars(record).items() if name in _CARRIED]
        return line + "".join(f" {name}={value}" for name, value in carried)


_CARRIED = ("upstream_status", "differs", "attempt", "record", "route", "method", "seconds")


_EXPECTED = ("ASGI callable returned without completing response", "Application startup failed")


def _is_no_routine(record: logging.LogRecord) -> bool:
    """Filters out what is done on purpose and uvicorn logs as an error: an aborted response, a refused start, tasks at a stop."""
    if record.name != "uvicorn.error":
        return True
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    return not str(record.msg).startswith(_EXPECTED)
