"""Logs: one line per event on standard error, JSON for machines and text on a terminal.

Lines about a request carry its id, and its trace's: `oncegate.middleware.rules.headers.request_id`.

Nothing secret gets here: what oncegate logs is built from settings without credentials, record ids, slugs and counts.
"""

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from pythonjsonlogger.json import JsonFormatter


def configure(level: str, style: Literal["auto", "json", "text"] = "auto") -> None:
    """Send every logger of this process to standard error, uvicorn's and asyncio's too."""
    handler = logging.StreamHandler(sys.stderr)
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(_Text() if text else _json())
    handler.addFilter(_is_no_routine)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("oncegate.request").setLevel(root.level)  # its own: each request looks at that
    # Its everyday lines (started, waiting, shutting down) only repeat ours.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))


def _json() -> logging.Formatter:
    return _Json(
        "{asctime}{levelname}{name}{process}{message}",
        style="{",
        rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
    )


class _Json(JsonFormatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's
        return instant(record.created)


def instant(seconds: float) -> str:
    """Unix time as RFC 3339 has it, in UTC, with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


class _Text(logging.Formatter):
    """A line for people: what happened, then what it carries."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        carried = [(name, value) for name, value in vars(record).items() if name in _CARRIED]
        return line + "".join(f" {name}={value}" for name, value in carried)


_CARRIED = (
    *("upstream_status", "differs", "attempt", "record", "route", "method", "seconds"),
    *("request_id", "trace_id"),
)


_EXPECTED = ("ASGI callable returned without completing response", "Application startup failed")


def _is_no_routine(record: logging.LogRecord) -> bool:
    """Filters out what is done on purpose and uvicorn logs as an error: an aborted response, a refused start, tasks at a stop."""
    if record.name != "uvicorn.error":
        return True
    if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
        return False
    return not str(record.msg).startswith(_EXPECTED)
