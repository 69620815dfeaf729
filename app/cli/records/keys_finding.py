"""Options of ``oncegate keys`` that say what became of a request: the outcome, and the response that retries get."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from oncegate.app.cli.usage import end
from oncegate.cache.record import State

if TYPE_CHECKING:
    from oncegate.cache.transitions import ResolveRequest

_TTL = (
    "For how long it is kept. Without: the longest ttl (of a failure: error_ttl) of any route, by the gateway's own "
    "configuration, or here by --config's."
)


class Finding(Protocol):
    """The finding that the options give. They are read when it is called, with the ``caller`` that another option gives."""

    def __call__(self, caller: str | None, *, force: bool = False, attempt: int = 0) -> "ResolveRequest":
        """Ends the process where they can't be.

        Raises `oncegate.app.operators.records.records.NotARecord` for a response that can't be kept.
        """
        ...


def finding_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options, which the command gets as one argument: ``finding``."""

    @click.option("--as", "outcome", type=click.Choice(["succeeded", "failed"]), help="What became of it.")
    @click.option(
        "--status", type=click.IntRange(200, 599), help="The status that retries get; implies --as succeeded."
    )
    @click.option(
        "--body",
        metavar="TEXT|@FILE|@-",
        default="",
        help="The body that retries get: application/json, unless --header says otherwise.",
    )
    @click.option("--header", "headers", multiple=True, metavar="LINE", help="A header that retries get; repeatable.")
    @click.option("--ttl", type=float, metavar="SECONDS", help=_TTL)
    @wraps(command)
    def with_finding(
        outcome: str | None, status: int | None, body: str, headers: tuple[str, ...], ttl: float | None, **others: Any
    ) -> Any:
        def finding(caller: str | None, *, force: bool = False, attempt: int = 0) -> "ResolveRequest":
            from oncegate.app.operators.records.resolving import resolution

            if caller is not None and body == "@-":
                end("standard input can't be both the caller and the body")
            return resolution(
                State(outcome or ("succeeded" if status is not None else end("say --status, or --as failed"))),
                status=status,
                headers=[_header(line) for line in headers],
                body=_content(body),
                ttl=ttl,
                force=force,
                attempt=attempt,
            )

        return command(finding=finding, **others)

    return with_finding


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        end("--header takes a header line: 'Location: /payments/17'")
    return name.strip(), value.strip(" \t")


def _content(body: str) -> bytes:
    """The bytes that ``--body`` stands for: a file's content, standard input's, or its own text."""
    try:
        if body == "@-":
            return sys.stdin.buffer.read()
        if body.startswith("@"):
            return Path(body[1:]).read_bytes()
    except OSError as error:
        end(f"--body: the file can't be read: {error.strerror}")
    return body.encode("utf-8", "surrogateescape")
