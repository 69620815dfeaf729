"""The command line of ``oncegate check``."""

import sys
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.database.options import one_line
from oncegate.app.cli.terminal import output, plain
from oncegate.app.cli.usage import json_output, run_quietly, with_place, without_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncegate.app.cli.check.findings import Finding
    from oncegate.app.settings.gateway import GatewaySettings

_MARKS = {"good": ("ok", "green"), "advice": ("!!", "yellow"), "failed": ("no", "bold red")}


@click.command(short_help="Look at configuration, cache and upstream before trusting them.")
@click.option("--upstream", metavar="URL", help="As for serve.")
@click.option("--cache", metavar="URL", help="As for serve.")
@click.option("--config", metavar="FILE", help="As for serve.")
@click.option(
    "--database", metavar="URL", help="Look at the outbox and the order in this database, and at nothing else."
)
@click.option("--schema", metavar="NAME", help="Where its tables are.")
@click.option(
    "--against",
    metavar="FILE|URL",
    help="Say what changes for callers, against another file, or the gateway at http://..., and look at nothing else.",
)
@click.option(
    "--openapi",
    "spec",
    metavar="FILE",
    help="The upstream's OpenAPI description: name routes that match none of its paths.",
)
@click.option("--prefix", metavar="PATH", help="As for openapi: what requests have before the paths of --openapi.")
@click.option("--strict", is_flag=True, help="Exit code 1 for advice too.")
@json_output
def check(
    config: str | None,
    strict: bool,
    as_json: bool,
    database: str | None,
    schema: str | None,
    against: str | None,
    spec: str | None,
    prefix: str | None,
    **options: str | None,
) -> None:
    """Look at the configuration, the cache, the upstream and the keys of tokens, each with a severity and what to do about it.

    The first line names the build and the interpreter. One record is written to the cache and removed again, and nothing else
    changes; the upstream gets one HEAD request, and is watched for as long as an idle connection is kept.
    With --openapi it names routes that match no path of the upstream, with the path that is probably meant.
    With --database it looks at that instead, for an outbox and for inboxes with an order: their tables, what the role may,
    transactions that are open for long, rows and aggregates that wait.
    With --against it says route by route what would change for callers, which settings wait for a restart, and whether a reload
    would take the configuration. A gateway's rules are those that it publishes (policy), without limits and time-outs;
    ONCEGATE_ADMIN_TOKEN is sent, if it is set.
    Exit codes: 0 the gateway can run, 1 it can't (cache, upstream or keys; with --against: a reload would be refused, or the
    gateway does not answer), 2 the configuration is wrong. With --strict 1 for advice, too; a change is advice.
    """
    from oncegate.app.cli.check.comparison import compared_with_gateway, compared_with_settings
    from oncegate.app.cli.check.findings import Finding, Severity, examine
    from oncegate.app.settings.loading.sources import ConfigurationError, gateway_admin_token, load
    from oncegate.app.version import running

    if database is not None:
        with one_line():
            from oncegate.sql.outbox.examine import examine as examine_database

            seen = examine_database(database, schema)
        found = [Finding(each.area, Severity(each.severity), with_place(each.text)) for each in seen]
    else:
        try:
            settings = load(without_none(options), config)
            gateway_admin_token()
            if against is not None and "://" not in against:
                other = load(without_none(options), against)
            if settings.tracing:
                from oncegate.app.telemetry.tracing import ProcessTracing

                ProcessTracing()
        except ConfigurationError as error:
            _show([Finding("configuration", Severity.FAILED, str(error))], as_json=as_json)
            sys.exit(2)
        if against is None:
            build = Finding("build", Severity.GOOD, running())
            found = [build, *_routes(settings, spec, prefix), *run_quietly(examine(settings))]
        elif "://" not in against:
            found = compared_with_settings(other, settings)
        else:
            found = run_quietly(compared_with_gateway(against, settings))
    _show(found, as_json=as_json)
    worst = {finding.severity for finding in found}
    sys.exit(1 if Severity.FAILED in worst or (strict and Severity.ADVICE in worst) else 0)


def _routes(settings: "GatewaySettings", spec: str | None, prefix: str | None) -> "list[Finding]":
    if spec is None:
        return []
    from oncegate.app.cli.check.findings import Finding, Severity
    from oncegate.app.cli.openapi import unmatched_routes

    lines = unmatched_routes(settings, spec, prefix=prefix)
    found = [Finding("routes", Severity.ADVICE, line) for line in lines]
    return found or [Finding("routes", Severity.GOOD, f"each of them matches a path of {spec}")]


def _show(found: "Sequence[Finding]", *, as_json: bool) -> None:
    findings = [{"area": each.area, "verdict": each.severity.value, "text": each.text} for each in found]
    output({"findings": findings}, _print_findings, as_json=as_json)


def _print_findings(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for each in found["findings"]:
        mark, style = _MARKS[each["verdict"]]
        console.print(Text.assemble((mark, style), f"  {each['area']:<14} {plain(each['text'])}"))
