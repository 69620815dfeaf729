"""A command that works in a database until it is stopped: its log, its signals, its event loop, its exit code."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from oncegate.app.processes import ignore_signals
from oncegate.app.telemetry import logs
from oncegate.app.work import loop_factory
from oncegate.sql.database.access import NotDone


@dataclass(frozen=True, slots=True, kw_only=True)
class UntilStopped:
    """The options that such commands share."""

    database: str
    log_level: str
    log_format: Literal["auto", "json", "text"]
    log_every: float
    metrics_port: int
    metrics_host: str


def run_until_stopped(
    work: Coroutine[Any, Any, None],
    log: logging.Logger,
    options: UntilStopped,
    *,
    refused: type[Exception] = NotDone,
) -> int:
    """Run ``work`` to its end; returns the exit code. An error that nobody foresaw is logged, and becomes 1.

    Raises `NotDone`, also for what is ``refused``: it is one line for whoever has typed the command.
    """
    logs.configure(options.log_level, options.log_format)
    ignore_signals()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(work)
    except NotDone:
        raise
    except refused as error:
        raise NotDone(str(error)) from None
    except Exception:  # anything else is logged, and becomes the exit code
        log.exception("failed, and ends")
        return 1
    return 0
