"""Who changes something by a command, and why: ``--reason``, and the audit line."""

import getpass
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from oncegate.app.cli.terminal import plain
from oncegate.app.cli.usage import end
from oncegate.app.operators.audit import MOST_REASON, REASON, Author, log

if TYPE_CHECKING:
    from oncegate.app.operators.audit_lines import AuditLines

_MOST_NAME = 64


def author(reason: str) -> Author:
    """The author of this process's changes: the account that runs it, as user@host, and the ``reason``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no entry for the user's id, as in a container
        user = str(os.getuid())
    name = f"{user}@{socket.gethostname()}"[:_MOST_NAME]
    # From LOGNAME, which anybody sets: a line break in it would be another audit line, U+202E would turn this one round.
    return Author("".join(each if each.isprintable() else "?" for each in name), reason)


def audit(what: str, done: str, reason: str) -> None:
    """Write on standard error what was changed, and how: no gateway writes this audit line."""
    with audit_shown():
        author(reason).report(plain(what), done)


@contextmanager
def audit_shown() -> Iterator[None]:
    """Audit lines go to standard error meanwhile."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


async def audit_kept(cache: object, namespace: str, what: str, done: str, reason: str) -> None:
    """Keep the same in the cache, where `oncegate.app.cli.records.audit_list` lists it."""
    lines = audit_lines(cache, namespace)
    if lines is not None:
        await lines.keep(author(reason), plain(what), done)


def audit_lines(cache: object, namespace: str) -> "AuditLines | None":
    """Where the audit lines of a namespace are kept; ``None`` where its cache keeps none."""
    from oncegate.app.operators.audit_lines import AuditLines
    from oncegate.cache.store import KeepsAudit

    return AuditLines(cache, namespace) if isinstance(cache, KeepsAudit) else None


def _checked_reason(_: click.Context, __: click.Parameter, reason: str) -> str:
    """A ``--reason`` as it can be kept. Ends the process for another one."""
    if len(reason) > MOST_REASON or not REASON.fullmatch(reason):
        end(
            f"--reason is one line of at most {MOST_REASON} characters, without marks that hide in a text or turn it round"
        )
    return reason


def _given_reason(context: click.Context, parameter: click.Parameter, reason: str) -> str:
    """The same, of one that has to be there."""
    return _checked_reason(context, parameter, reason.strip()) or end("--reason says why, in some words")


reason = click.option(
    "--reason", default="", metavar="TEXT", callback=_checked_reason, help="Why; kept and logged with your name."
)
"""The option of whatever an operator changes."""
reason_needed = click.option(
    "--reason", required=True, metavar="TEXT", callback=_given_reason, help="Why; logged with your name."
)
"""The option of commands whose effect can't be undone."""
