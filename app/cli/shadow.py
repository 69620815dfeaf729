"""The command line of ``oncegate shadow``: what enforcement would have done, from the logs of gateways that observe."""

import sys
from collections.abc import Iterator
from typing import IO

import click

from oncegate.app.cli.terminal import output
from oncegate.app.cli.usage import end, json_output

_LONGEST = 1 << 20
"""Bytes of a line: no gateway writes a longer one."""


@click.group(short_help="What enforcement would do, before it does.")
def shadow() -> None:
    """Look at what gateways have observed that run with shadow = true.

    Such a gateway forwards requests untouched, and logs what enforcement would have done: see docs/rollout.md.
    """


@shadow.command(short_help="Count what enforcement would have done.")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.File("rb"))
@json_output
def report(files: tuple[IO[bytes], ...], as_json: bool) -> None:
    """Count, from gateways' logs in JSON, what enforcement would have done.

    \b
      oncegate shadow report gateway-1.log gateway-2.log
      kubectl logs -l app=payments -c oncegate --tail=-1 | oncegate shadow report

    By route: requests without keys, callers that reuse keys, duplicates that were executed twice and what came of
    them, what would have been refused; and the counts that oncegate_requests_total would have had. Reads standard
    input without FILE. Needs log_format = "json" and log_level "info" or "debug".
    """
    from oncegate.app.cli.shadow_view import print_report
    from oncegate.app.operators.shadow_report import DamagedLine, ForeignLine, ShadowReport

    made, lines, foreign = ShadowReport(), 0, ""
    skipped = 0
    for file in files or (sys.stdin.buffer,):
        for number, line in enumerate(_lines(file), 1):
            lines += 1
            try:
                made.add(line)
            except ForeignLine:
                skipped += 1
                foreign = foreign or f"{file.name}:{number}"
            except DamagedLine as error:
                end(f"{file.name}:{number}: {error}: was it written by another version of oncegate?", 1)
    if skipped:
        click.echo(
            f"oncegate: {skipped} of {lines} lines are no JSON and were skipped, the first at {foreign}", err=True
        )
    if not made.observed:
        end(
            f"nothing was observed in {lines} lines: has the gateway shadow = true and enforce below 100 "
            '(oncegate check), log_format = "json" and log_level = "info"?',
            1,
        )
    output(made.document() | {"skipped_lines": skipped}, print_report, as_json=as_json)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of ``file``; of one that is too long to be one, its beginning."""
    while line := file.readline(_LONGEST):
        yield line
        while len(line) == _LONGEST and not line.endswith(b"\n"):
            line = file.readline(_LONGEST)
