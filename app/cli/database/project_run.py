"""Runs projections as a process: what is imported, its pages, signals, an orderly stop."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from oncegate.app.cli.database.relay_run import imported_for, pages_at
from oncegate.app.cli.database.until_stopped import UntilStopped, run_until_stopped
from oncegate.app.processes import stop_by_signals
from oncegate.prometheus import ProjectionMetrics
from oncegate.sql import Projection
from oncegate.sql.database.access import NotDone, connected
from oncegate.sql.projections.position import ProjectionMisused
from oncegate.sql.projections.runner import ProjectionRunner

log = logging.getLogger("oncegate.projection")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOptions(UntilStopped):
    """The options of ``oncegate project``."""

    projections: tuple[str, ...]


def run_projections(options: ProjectOptions) -> int:
    """Run projections until they are stopped; returns the exit code. Raises `NotDone`."""
    return run_until_stopped(_run(options), log, options, refused=ProjectionMisused)


async def _run(options: ProjectOptions) -> None:
    pages = pages_at(options.metrics_host, options.metrics_port)
    metrics = ProjectionMetrics(registry=CollectorRegistry() if pages is None else pages.registry)
    named = [_projection(target) for target in options.projections]
    async with connected(options.database) as engine:
        try:
            runners = [each.runner(engine, watch=metrics, log_every=options.log_every) for each in named]
        except (TypeError, ValueError) as error:
            raise NotDone(str(error), usage=True) from None
        stop_by_signals(lambda: _stop(runners))
        if pages is not None:
            await pages.start()
        try:
            await _run_all(runners)
        finally:
            if pages is not None:
                pages.close()


async def _run_all(runners: Sequence[ProjectionRunner]) -> None:
    """Until all have ended; where one can't go on, the others end after their batches. Raises what that has raised."""

    async def run(runner: ProjectionRunner) -> None:
        try:
            await runner.run()
        finally:
            _stop(runners)

    ends = await asyncio.gather(*map(run, runners), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


def _stop(runners: Sequence[ProjectionRunner]) -> None:
    for runner in runners:
        runner.stop()


def _projection(target: str) -> Projection:
    """The object that ``package.module:name`` names. Raises `NotDone`."""
    found = imported_for("", target, "projection")
    if not isinstance(found, Projection):
        raise NotDone(f"{target} is a {type(found).__name__}: no Projection", usage=True)
    return found
