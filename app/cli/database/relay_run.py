"""Runs a relay as a process: its broker, its pages, signals, an orderly stop."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from prometheus_client import CollectorRegistry

from oncegate.app.cli.database.until_stopped import UntilStopped, run_until_stopped
from oncegate.app.commands.handler import HandlerError, imported
from oncegate.app.processes import stop_by_signals
from oncegate.app.server.pages import Pages
from oncegate.app.settings.gateway import redact
from oncegate.app.telemetry.tracing import ProcessTracing, TracingRefused
from oncegate.cache.redis.url import REDIS_SCHEMES
from oncegate.prometheus import RelayMetrics
from oncegate.sql.database.access import NotDone, connected
from oncegate.sql.database.errors import is_of_database
from oncegate.sql.outbox.publishing import Publish, RedisStreams, by_broker
from oncegate.sql.outbox.relay import Relay
from oncegate.sql.outbox.sources.database_source import DatabaseSource
from oncegate.sql.outbox.sources.outbox_source import OutboxSource
from oncegate.sql.outbox.sources.source import Source

log = logging.getLogger("oncegate.relay")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions(UntilStopped):
    """The options of ``oncegate relay``."""

    target: str
    source: str | None
    outbox: tuple[str, ...]
    schema: str | None
    batch: int
    confirm_timeout: float
    stall_limit: float
    attempts: int
    keep_hours: float
    tracing: bool


def run_relay(options: RelayOptions) -> int:
    """Run a relay until it is stopped; returns the exit code. Raises `NotDone`."""
    return run_until_stopped(_run(options), log, options)


async def _run(options: RelayOptions) -> None:
    pages = pages_at(options.metrics_host, options.metrics_port)
    tracing = _tracing() if options.tracing else None
    metrics = RelayMetrics(registry=CollectorRegistry() if pages is None else pages.registry)
    async with connected(options.database) as engine, _publisher(options.target) as publish:
        try:
            source = await _source(options, engine)
            relay = Relay(
                source,
                publish,
                batch=options.batch,
                confirm_timeout=options.confirm_timeout,
                log_every=options.log_every,
                watch=metrics,
                tracing=None if tracing is None else tracing.tracing.messages(_system(options.target)),
            )
        except ValueError as error:
            raise NotDone(str(error), usage=True) from None
        stop_by_signals(relay.stop)
        if pages is not None:
            await pages.start()
        if tracing is not None:
            tracing.start()
        try:
            await relay.run()
        finally:
            if tracing is not None:
                await tracing.stop()
            if pages is not None:
                pages.close()


def _system(target: str) -> str:
    """The messaging system that ``target`` names, as spans do; of a broker of FastStream's, by its class."""
    if ":" in target and "://" not in target:
        kind = type(imported_for("--to: ", target, "broker")).__name__.removesuffix("Broker").lower()
        return {"rabbit": "rabbitmq"}.get(kind, kind)
    return "redis"


def _tracing() -> ProcessTracing:
    try:
        return ProcessTracing()
    except TracingRefused as refusal:
        raise NotDone(str(refusal).replace("set tracing = false", "leave out --tracing"), usage=True) from None


async def _source(options: RelayOptions, engine: Any) -> Source:
    """The source that the options name, its table checked. Raises `NotDone`, and ``ValueError`` for what contradicts itself."""
    source = _outbox(options, engine) if options.source is None else _made(options.source, engine)
    if isinstance(source, DatabaseSource):
        try:
            await source.check()
        except Exception as error:  # what is not the database's state is raised again
            if not is_of_database(error):
                raise
            log.warning("the database can't be used yet, nothing is published until then: %s", type(error).__name__)
    return source


def _outbox(options: RelayOptions, engine: Any) -> Source:
    return OutboxSource(
        engine,
        *options.outbox,
        schema=options.schema,
        attempts=options.attempts,
        keep=options.keep_hours * 3600,
        stall_limit=options.stall_limit,
    )


def _made(target: str, engine: Any) -> Source:
    """The source that the user's function makes of ``engine``. Raises `NotDone`."""
    make = imported_for("--source: ", target, "function")
    source = make(engine) if callable(make) else make
    if not all(hasattr(source, name) for name in ("take", "settle", "let_go", "measure", "close")):
        raise NotDone(f"--source: {target} gives a {type(source).__name__}: no source", usage=True)
    return cast("Source", source)


def pages_at(host: str, port: int) -> Pages | None:
    """The pages of a command, where it was given a port for them. Raises `NotDone`."""
    if not port:
        return None
    try:
        return Pages(host, port, "--metrics-port")
    except OSError as error:
        raise NotDone(str(error)) from None


@asynccontextmanager
async def _publisher(target: str) -> AsyncIterator[Publish]:
    """The function that publishes to ``target``; its connections are closed at the end. Raises `NotDone`."""
    publish: Publish
    if target.startswith(tuple(f"{scheme}://" for scheme in REDIS_SCHEMES)):
        try:
            publish = streams = RedisStreams(target)
        except ValueError as error:
            raise NotDone(f"--to: {redact(target)}: {error}", usage=True) from None
        close = streams.close
    else:
        broker = imported_for("--to: ", target, "broker, or the URL of a Redis")
        try:
            publish = by_broker(broker)
        except TypeError as error:
            raise NotDone(f"--to: {target}: {error}", usage=True) from None
        close = broker.stop
    try:
        yield publish
    finally:
        await close()


def imported_for(option: str, target: str, what: str) -> Any:
    """The object that ``package.module:name`` names, looked for in the working directory too. Raises `NotDone`."""
    if ":" not in target:
        raise NotDone(f"{option}give package.module:{what}", usage=True)
    try:
        return imported(target)
    except HandlerError as error:
        raise NotDone(f"{option}{error}", usage=True) from None
