"""The command line of ``oncegate config``."""

import json
from typing import Any

import click

from oncegate.app.cli.terminal import Columns, output, print_lines, print_table
from oncegate.app.cli.usage import end, json_output, remote_gateway, run_quietly, without_none


@click.command(short_help="Print the settings in effect, and where each came from.")
@click.option("--upstream", metavar="URL", help="As for serve.")
@click.option("--cache", metavar="URL", help="As for serve.")
@click.option("--host", metavar="HOST", help="As for serve.")
@click.option("--port", metavar="PORT", help="As for serve.")
@click.option("--workers", metavar="N", help="As for serve.")
@click.option("--config", "file", metavar="FILE", help="As for serve.")
@click.option("--gateway", metavar="URL", help="Those of this gateway, as it runs; ONCEGATE_ADMIN_TOKEN is its token.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the file instead, for editors.")
@json_output
def config(file: str | None, gateway: str | None, schema: bool, as_json: bool, **options: str | None) -> None:
    """Print the settings in effect, and where each came from: a default, a line of the file, a variable of the environment,
    the command line.

    \b
      oncegate config --config oncegate.toml
      ONCEGATE_PORT=9090 oncegate config --config oncegate.toml | grep -v '# default'
      oncegate config --gateway http://127.0.0.1:8080

    It prints TOML. Secrets are left out: of URLs what may be a credential, of other settings the whole value.
    Exit codes: 0 the configuration can be used, 2 it is wrong.
    """
    if schema:
        from oncegate.app.settings.shown.schema import schema as file_schema

        click.echo(json.dumps(file_schema(), indent=2, ensure_ascii=False))
        return
    if gateway is not None:
        if file is not None or without_none(options):
            end("--gateway excludes the other options: the gateway knows its own settings")
        output(run_quietly(remote_gateway(gateway).settings()), _print, as_json=as_json)
        return
    from oncegate.app.settings.loading.sources import gateway_admin_token, load
    from oncegate.app.settings.shown.effective import as_toml, effective, listing

    settings = load(without_none(options), file)
    token = gateway_admin_token()
    if as_json:
        click.echo(json.dumps({"settings": listing(settings)}, indent=2, ensure_ascii=False))
        return
    if token is not None:
        click.echo("# ONCEGATE_ADMIN_TOKEN is set, and left out")
    click.echo(as_toml(effective(settings)), nl=False)


def _print(found: dict[str, Any]) -> None:
    print_lines([f"configuration {found['configuration']}, in effect in {found['process']}"])
    print_table(_COLUMNS, found["settings"], folded=("value", "from"))


def _value(row: dict[str, Any]) -> str:
    if row["secret"]:
        return "set, and left out"
    return "not set" if row["value"] is None else json.dumps(row["value"], ensure_ascii=False)


_COLUMNS: Columns = {"name": "name", "value": _value, "from": "source"}
