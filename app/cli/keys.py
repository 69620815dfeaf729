"""``oncegate keys``: shows, resolves, releases and purges the records of idempotency keys. For 3 a.m."""

import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import click

from oncegate.app.cli.usage import audit, end, reason
from oncegate.cache.redis.url import REDIS_SCHEMES, either

if TYPE_CHECKING:
    from oncegate.app.cli.records_source import Source
    from oncegate.cache.record import StoredResponse

_TTL = (
    "For how long it is kept. Without: the longest ttl (of a failure: error_ttl) of any route, by the gateway's own "
    "configuration, or here by --config's."
)
_ONLY_SHARED = (
    "those of memory:// can't be purged, and go with their gateway's restart; one by one: keys release --gateway URL"
)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
STATES = ("in-flight", "succeeded", "failed", "unknown")


@click.group(short_help="Look at records, and resolve what nobody knows.")
def keys() -> None:
    """Look at the records of idempotency keys, and resolve those whose outcome nobody knows.

    \b
      # after a node was lost: which requests may or may not have been executed?
      oncegate keys list --state unknown --config gateway.toml
    \b
      # what happened to this one? (the id is in problems and logs)
      oncegate keys show --record Y8bAlpm6rOs3_.Ar.w7W:t9uHGWxINAXkD4QB.h_J
      echo 'Authorization: Bearer ...' | oncegate keys show order-17 --caller -
    \b
      # it was executed: retries get this answer from now on
      oncegate keys resolve --record ID --status 201 --body @answer.json
      # it was not: the next retry executes it
      oncegate keys release --record ID --reason 'no debit in the bank statement'
    \b
      # whatever was kept for this caller, or by this route's rules
      echo 'Authorization: Bearer ...' | oncegate keys purge --caller - --dry-run
      oncegate keys purge --route '/payments/*' --older 7d

    Records are looked for in the shared cache that --cache, --config or the environment name, or in a
    gateway's own memory: --gateway URL, with ONCEGATE_ADMIN_TOKEN in the environment.
    """


def _options(
    command: Callable[..., None], in_memory: str = "those of memory:// are in the gateway: --gateway URL"
) -> Callable[..., None]:
    """The options of every command: where the records are, and the output format.

    ``in_memory`` is the advice for records that are in no shared cache.
    """

    @click.option(
        "--cache",
        metavar="URL",
        help=f"The shared cache: {either(REDIS_SCHEMES, ', ')}.",
    )
    @click.option("--namespace", metavar="NAME", help="The namespace of the service (default: default).")
    @click.option("--config", metavar="FILE", help="The gateway's TOML file (or ONCEGATE_CONFIG).")
    @click.option("--gateway", metavar="URL", help="Ask this gateway instead; ONCEGATE_ADMIN_TOKEN is its token.")
    @click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts.")
    @wraps(command)
    def with_source(*, as_json: bool, **options: Any) -> None:
        import logging

        from oncegate.app.cli.records_source import SourceError
        from oncegate.app.operators.records import NotARecord
        from oncegate.cache.errors import CacheError
        from oncegate.middleware.rules.errors import KeyInvalid

        # An error is printed once, at the end; the cache's own warnings are for the log of a gateway.
        logging.getLogger("oncegate").addHandler(logging.NullHandler())
        try:
            where = {name: options.pop(name) for name in ("cache", "namespace", "config", "gateway")}
            source = _source(**where, in_memory=in_memory)
            command(source=source, as_json=as_json, **options)
        except (NotARecord, KeyInvalid) as error:
            end(f"{error}")
        except (CacheError, SourceError) as error:
            end(f"{error}", 1)

    return with_source


def _which(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which record: by key and caller, or by its id."""
    command = click.argument("key", required=False)(command)
    command = click.option("--record", metavar="ID", help="The record's id, as problems and logs carry it.")(command)
    return click.option("--caller", metavar="-", help="Whose: the caller's header lines are read from standard input.")(
        command
    )


@keys.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only those that read so.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="About how many.")
@click.option("--cursor", default="", metavar="CURSOR", help="Go on where an earlier list ended.")
@_options
def list_(source: "Source", as_json: bool, state: str | None, limit: int, cursor: str) -> None:
    """Tell which records there are."""
    from oncegate.app.cli.keys_view import show_list

    found: dict[str, dict[str, Any]] = {}
    while len(found) < limit:
        # Those in one state may be few among many: larger steps, fewer questions.
        step = 1000 if state is not None else min(1000, limit - len(found))
        listing = source.listing(state, cursor, step)
        found.update((record["id"], record) for record in listing.records)
        cursor, before = listing.cursor, cursor
        if cursor in ("", before):
            break
    show_list(list(found.values()), cursor, as_json=as_json)


@keys.command()
@_which
@_options
def show(source: "Source", as_json: bool, key: str | None, record: str | None, caller: str | None) -> None:
    """Tell what happened to a request: by its key, or by its record's id."""
    from oncegate.app.cli.keys_view import show_records

    found = _find(source, key, record, caller)
    records = (_record(source, identifier, alone=len(found) == 1) for identifier in found)
    there = [record for record in records if record]
    if not there:
        end("no such record: it was never made, or its time is over", 1)
    show_records(there, as_json=as_json)


def _record(source: "Source", identifier: str, *, alone: bool) -> dict[str, Any] | None:
    from oncegate.cache.errors import RecordUnreadable

    try:
        return source.show(identifier)
    except RecordUnreadable as error:
        if alone:
            raise RecordUnreadable(f"record {identifier}: {error}") from None
        return {"id": identifier, "state": "unreadable"}  # the other callers' records can still be shown


@keys.command()
@_which
@click.option("--force", is_flag=True, help="Also while the attempt is running. It runs on all the same.")
@click.option("--attempt", type=click.IntRange(1), help="Only while this is the record's attempt.")
@reason
@_options
def release(
    source: "Source",
    as_json: bool,
    key: str | None,
    record: str | None,
    caller: str | None,
    force: bool,
    attempt: int | None,
    reason: str,
) -> None:
    """Set a key free, because its request was not executed: the next retry will be."""
    from oncegate.cache.transitions import ResolveRequest

    identifier = _one(source, key, record, caller)
    _resolve(source, identifier, ResolveRequest(None, force=force, attempt=attempt or 0), reason, as_json=as_json)


@keys.command()
@_which
@click.option("--as", "outcome", type=click.Choice(["succeeded", "failed"]), help="What became of it.")
@click.option("--status", type=click.IntRange(200, 599), help="The status that retries get; implies --as succeeded.")
@click.option(
    "--body",
    metavar="TEXT|@FILE|@-",
    default="",
    help="The body that retries get: application/json, unless --header says otherwise.",
)
@click.option("--header", "headers", multiple=True, metavar="LINE", help="A header that retries get; repeatable.")
@click.option("--ttl", type=float, metavar="SECONDS", help=_TTL)
@click.option("--force", is_flag=True, help="Also while the attempt is running. It runs on all the same.")
@click.option("--attempt", type=click.IntRange(1), help="Only while this is the record's attempt.")
@reason
@_options
def resolve(
    source: "Source",
    as_json: bool,
    key: str | None,
    record: str | None,
    caller: str | None,
    outcome: str | None,
    status: int | None,
    body: str,
    headers: tuple[str, ...],
    ttl: float | None,
    force: bool,
    attempt: int | None,
    reason: str,
) -> None:
    """Write down what became of a request whose outcome nobody knows."""
    from oncegate.app.operators.records import MOST_SECONDS
    from oncegate.cache.record import State
    from oncegate.cache.transitions import ResolveRequest

    state = State(outcome or ("succeeded" if status is not None else end("say --status, or --as failed")))
    if status is None and (state is State.SUCCEEDED or body or headers):
        end("--status is missing: a success is answered with one, and so is whatever has a body")
    if caller is not None and body == "@-":
        end("standard input can't be both the caller and the body")
    response = None if status is None else _response(status, headers, body)
    if ttl is not None and not 0 < ttl <= MOST_SECONDS:
        end("--ttl is above 0 seconds, and at most ten years")
    ttl_ms = max(1, round(ttl * 1000)) if ttl is not None else 0
    identifier = _one(source, key, record, caller)
    resolution = ResolveRequest(state, response, ttl_ms, force, attempt or 0)
    _resolve(source, identifier, resolution, reason, as_json=as_json)


@keys.command()
@click.option("--caller", metavar="-", help="Whose: the caller's header lines are read from standard input.")
@click.option(
    "--route", metavar="PATTERN", help="Those of this route, spelled as in the configuration; * is the default one."
)
@click.option("--older", metavar="AGE", help="Those completed longer ago than this: 45s, 90m, 12h, 30d.")
@click.option("--dry-run", is_flag=True, help="Only tell how many there are.")
@click.option("--force", is_flag=True, help="Also those in flight, whose attempts run on, or of unknown outcome.")
@reason
@partial(_options, in_memory=_ONLY_SHARED)
def purge(
    source: "Source",
    as_json: bool,
    caller: str | None,
    route: str | None,
    older: str | None,
    dry_run: bool,
    force: bool,
    reason: str,
) -> None:
    """Remove the records of one caller, of one route, or of an age: a retry of what they answered is executed again.

    Those in flight or of unknown outcome stay, and those that can't be read. Records know their route since the version that
    has this command; their age is by the clock of the gateway that completed them. On a terminal it shows how far it is.
    """
    from rich.console import Console

    from oncegate.app.cli.keys_view import purging, show_purged
    from oncegate.app.cli.records_source import SharedCache
    from oncegate.app.operators.purge import Which

    if caller is None and route is None and older is None:
        end("give --caller -, --route PATTERN or --older AGE, or several of them")
    before_ms = _before_ms(older)
    if not isinstance(source, SharedCache):
        end(f"purge works on the shared cache itself: give --cache URL or --config FILE; {_ONLY_SHARED}")
    lines = _caller_lines(caller)
    if lines is not None and not lines:
        end("standard input has no header lines: nobody in particular is no caller whose records could be purged")
    with purging(Console(stderr=True)) as progress:
        purged = source.purge(lines, Which(None, route, force, before_ms), dry_run=dry_run, progress=progress)
    if purged.removed:
        chosen = ["one caller"] * (lines is not None) + [f"route {route}"] * (route is not None)
        chosen += [f"completed more than {older} ago"] * (older is not None)
        audit(f"{purged.removed} records ({', '.join(chosen)})", f"purged{', by force,' if force else ''}", reason)
    show_purged(purged, dry_run=dry_run, as_json=as_json)


def _before_ms(older: str | None) -> int:
    """The Unix time (ms) that was ``older`` ago; 0 where ``older`` was not given."""
    if older is None:
        return 0
    amount, unit = older[:-1], older[-1:]
    if not (amount.isascii() and amount.isdigit() and len(amount) < 8 and int(amount) and unit in _UNITS):
        end("--older takes an age above 0: 45s, 90m, 12h, 30d")
    return max(1, round(time() * 1000) - int(amount) * _UNITS[unit] * 1000)


def _resolve(source: "Source", identifier: str, resolve: Any, reason: str, *, as_json: bool) -> None:
    from oncegate.app.cli.keys_view import show_resolution
    from oncegate.app.operators.records import WHY_NOT
    from oncegate.cache.transitions import Resolution

    resolution = source.resolve(identifier, resolve, reason)
    if resolution is not Resolution.RESOLVED:
        end(f"nothing was changed: {WHY_NOT[resolution][1]}", 1)
    show_resolution(identifier, resolve.state.value if resolve.state else "absent", as_json=as_json)


def _source(
    cache: str | None, namespace: str | None, config: str | None, gateway: str | None, in_memory: str
) -> "Source":
    from oncegate.app.cli.records_source import RemoteGateway, SharedCache
    from oncegate.app.settings.sources import ConfigurationError, admin_token, load

    if gateway is not None:
        if cache is not None or namespace is not None or config is not None:
            end("--gateway excludes --cache, --namespace and --config: the gateway knows its own")
        try:
            token = admin_token()
        except ConfigurationError as error:
            end(str(error))
        if token is None:
            end("ONCEGATE_ADMIN_TOKEN is not set: it is the gateway's token for operators")
        try:
            return RemoteGateway(gateway, token)
        except ValueError as error:
            end(str(error))
    given = {name: value for name, value in (("cache", cache), ("namespace", namespace)) if value is not None}
    try:
        # Records are found without an upstream, so none has to be named.
        settings = load(given, config, defaults={"upstream": "http://localhost"})
    except ConfigurationError as error:
        end(str(error))
    if settings.cache_scheme == "memory":
        end(f"which records? Give --cache URL or --config FILE; {in_memory}")
    return SharedCache(settings)


def _find(source: "Source", key: str | None, record: str | None, caller: str | None) -> Sequence[str]:
    if (key is None) == (record is None):
        end("give either a key or --record ID")
    if record is not None:
        if caller is not None:
            end("--record ID already says whose record it is: leave out --caller")
        return [record]
    return source.of_key(key or "", _caller_lines(caller))


def _caller_lines(caller: str | None) -> list[str] | None:
    if caller is None:
        return None
    if caller != "-":
        end(
            "--caller takes - only, and reads header lines from standard input: a credential is nothing for a command line"
        )
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    return [line for line in text.splitlines() if line.strip()]


def _one(source: "Source", key: str | None, record: str | None, caller: str | None) -> str:
    found = _find(source, key, record, caller)
    if not found:
        end("no such record: it was never made, or its time is over", 1)
    if len(found) > 1:
        end(f"several callers have used this key; say which with --caller - or --record: {', '.join(found)}", 1)
    return found[0]


def _response(status: int, headers: tuple[str, ...], body: str) -> "StoredResponse":
    from oncegate.app.operators.records import response_to_keep

    lines = []
    for line in headers:
        name, colon, value = line.partition(":")
        if not colon:
            end("--header takes a header line: 'Location: /payments/17'")
        lines.append((name.strip(), value.strip(" \t")))
    try:
        content = body.encode("utf-8", "surrogateescape")
        if body == "@-":
            content = sys.stdin.buffer.read()
        elif body.startswith("@"):
            content = Path(body[1:]).read_bytes()
    except OSError as error:
        end(f"--body: the file can't be read: {error.strerror}")
    return response_to_keep(status, lines, content)
