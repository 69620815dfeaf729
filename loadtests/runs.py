"""What the runs with kills share (`loadtests.commands_run` and others): command line, environment, a gateway for submissions."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from testing.gateway import Gateway
from testing.template import GATEWAY

CONSUMERS = (
    *GATEWAY,
    *("loadtests.inbox_handler", "loadtests.order_handler", "sqlalchemy.dialects.postgresql.asyncpg", "asyncpg"),
)
"""What those of `loadtests.inbox_run` and `loadtests.order_run` import, to be forked from one process."""


def main(description: str | None, plan: type[Any], perform: Callable[[Any, Console], Any]) -> int:
    """Perform what the command line says, and print plan and figures as JSON; the exit code, 0 where the figures are right.

    Each field of ``plan``, a dataclass, is an option; its metadata are further arguments of argparse.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for each in fields(plan):
        option = f"--{each.name.replace('_', '-')}"
        parser.add_argument(option, type=type(each.default), default=each.default, **each.metadata)
    planned = plan(**vars(parser.parse_args()))
    figures = perform(planned, Console(stderr=True))
    print(json.dumps({"plan": asdict(planned), "figures": asdict(figures), "right": figures.right}, indent=2))
    return 0 if figures.right else 1


def progress(console: Console) -> Progress:
    """Bars with a count and the time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def submissions(
    log: Path, cache: str, namespace: str, routes: Sequence[dict[str, Any]], **idempotency: float
) -> Gateway:
    """A gateway that takes commands, whose upstream nothing is forwarded to."""
    return Gateway(
        log,
        "http://127.0.0.1:9",
        cache,
        namespace=namespace,
        log_level="info",
        idempotency={"on_missing_key": "reject", **idempotency},
        routes=[*routes],
    )
