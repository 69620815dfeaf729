"""The command line of ``oncegate records``: the table that records in PostgreSQL are kept in."""

import click

from oncegate.app.cli.usage import end, run_quietly, settings_of


@click.group(short_help="The table of records in a database.")
def records() -> None:
    """Records in PostgreSQL (--cache postgresql://...) need a table, which its owner makes once.

    In a file of SQLite's the gateway makes its own. To look at records: oncegate keys.
    """


@records.command(short_help="Create the table.")
@click.option("--cache", metavar="URL", help="postgresql://OWNER@HOST/DATABASE (or ONCEGATE_CACHE).")
@click.option("--print", "printed", is_flag=True, help="Print the statements instead, for a migration of your own.")
def create(cache: str | None, printed: bool) -> None:
    """Create the table of records, where it is not there yet.

    \b
      oncegate records create --cache postgresql://owner@127.0.0.1/shop
      oncegate records create --print > 0001_records.sql

    The gateway's own user needs SELECT, INSERT, UPDATE and DELETE on oncegate_records, and nothing else.
    """
    from oncegate.cache.sql.postgresql.statements import TABLES

    if printed:
        click.echo(TABLES, nl=False)
        return
    settings = settings_of({"cache": cache}, None)
    if settings.cache_scheme != "postgresql":
        end("which database? Give --cache postgresql://OWNER@HOST/DATABASE; sqlite:// needs no table from you")
    from oncegate.cache.sql.postgresql.rows import create_table

    run_quietly(create_table(settings.cache, timeout=max(30.0, settings.cache_timeout)))
    click.echo("oncegate_records is there")
