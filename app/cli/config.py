"""The command line of ``oncegate config``."""

import json

import click

from oncegate.app.cli.usage import json_output, without_none


@click.command(short_help="Print the settings in effect, and where each came from.")
@click.option("--upstream", metavar="URL", help="As for serve.")
@click.option("--cache", metavar="URL", help="As for serve.")
@click.option("--host", metavar="HOST", help="As for serve.")
@click.option("--port", metavar="PORT", help="As for serve.")
@click.option("--workers", metavar="N", help="As for serve.")
@click.option("--config", "file", metavar="FILE", help="As for serve.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the file instead, for editors.")
@json_output
def config(file: str | None, schema: bool, as_json: bool, **options: str | None) -> None:
    """Print the settings in effect, and where each came from: a default, a line of the file, a variable of the environment,
    the command line.

    \b
      oncegate config --config oncegate.toml
      ONCEGATE_PORT=9090 oncegate config --config oncegate.toml | grep -v '# default'

    It prints TOML. Secrets are left out: of URLs what may be a credential, of other settings the whole value.
    Exit codes: 0 the configuration can be used, 2 it is wrong.
    """
    if schema:
        from oncegate.app.settings.schema import schema as file_schema

        click.echo(json.dumps(file_schema(), indent=2, ensure_ascii=False))
        return
    from oncegate.app.settings.effective import as_toml, effective
    from oncegate.app.settings.sources import gateway_admin_token, load_with_origins

    settings, origins = load_with_origins(without_none(options), file)
    token = gateway_admin_token()
    if as_json:
        found = [
            {
                "name": ".".join(map(str, each.where)),
                "value": each.value,
                "source": each.source,
                "secret": each.left_out,
            }
            for each in effective(settings, origins)
        ]
        click.echo(json.dumps({"settings": found}, indent=2, ensure_ascii=False))
        return
    if token is not None:
        click.echo("# ONCEGATE_ADMIN_TOKEN is set, and left out")
    click.echo(as_toml(effective(settings, origins)), nl=False)
