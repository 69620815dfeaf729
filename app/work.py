"""Runs a worker: builds it from its settings, handles signals, and stops once what was begun is finished.

SIGTERM, SIGINT or SIGQUIT: nothing more is read, what waits to be tried again is left to others, what is executed ends, within
``shutdown_timeout``; exit code 0. A second one ends it at once: what was executed is left to its lease. A handler that raises
``KeyboardInterrupt`` or ``SystemExit`` stops it as the first one does; exit code 1.
"""

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from oncegate.app import version
from oncegate.app.commands.executor import Executor
from oncegate.app.commands.handler import Handler, HandlerError, find_handler
from oncegate.app.commands.processing import Processing
from oncegate.app.commands.submission_life import SubmissionLife
from oncegate.app.commands.worker import BLOCK_MS, Worker
from oncegate.app.factory import CONNECT_TIMEOUT, create_cache
from oncegate.app.operators.heartbeats import Heartbeat
from oncegate.app.processes import ignore_signals, stop_by_signals
from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.app.settings.shown.digest import settings_digest
from oncegate.app.telemetry import logs
from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheError, CacheUnavailable
from oncegate.cache.redis.streams.commands import stream_client
from oncegate.cache.redis.streams.group import Group, LetterLimits
from oncegate.cache.redis.streams.stream import CommandStream
from oncegate.cache.store import Cache, KeepsSubmissions
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.middleware.consumers.late_outcomes import AHEAD_MS
from oncegate.middleware.consumers.subscription import Subscription
from oncegate.middleware.rules.checks.secret_check import check_secret

if TYPE_CHECKING:
    from oncegate.app.server.pages import Pages
    from oncegate.app.telemetry.tracing import ProcessTracing

log = logging.getLogger("oncegate.worker")

FAILED, USAGE = 1, 2
STREAM_TIMEOUT = 5.0
"""Seconds for an answer about the stream, which may bring megabytes; nothing but the next look depends on it."""
DRAIN_SECONDS = 1.0
"""The time at the end for outcomes that are known to be recorded."""
RETRY_BASE, RETRY_CAP = 1.0, 300.0
"""Seconds: the longest pause before the second attempt, which is doubled for each one after it, and the longest of all."""
MAX_DEAD_LETTERS = 10_000
"""The most dead letters of a stream, those of other consumers included; the oldest go first."""


class WorkerRefused(Exception):
    """A worker can't be made of these settings, or run on this cache. The text is one line; ``code`` is the exit code."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        super().__init__(text)
        self.code = code


def run_worker(settings: GatewaySettings, *, create: Callable[[GatewaySettings], Cache] = create_cache) -> int:
    """Run a worker until it is stopped; returns the exit code. ``create`` makes the cache of its records."""
    logs.configure(settings.log_level, settings.log_format)
    ignore_signals()
    try:
        executor = create_executor(settings)
        maintenance = _maintenance(settings, executor)
        metrics, pages = create_metrics(settings)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            tracing = create_tracing(settings)
            work = _work(settings, executor, _in_redis(create(settings)), maintenance, metrics, pages, tracing)
            left, code = runner.run(work)
    except WorkerRefused as refusal:
        sys.stderr.write(f"oncegate: {refusal}\n")
        return refusal.code
    except Exception:  # anything else is logged, and becomes the exit code
        log.exception("the worker failed")
        return _end(FAILED)
    return _end(code) if left else code


def create_executor(settings: GatewaySettings) -> Executor:
    """The executor of the worker of ``settings``. Raises `WorkerRefused`."""
    worker, rules = settings.worker, settings.idempotency
    if worker.handler:
        try:
            return Handler(find_handler(worker.handler), threads=worker.concurrency)
        except HandlerError as error:
            raise WorkerRefused(f"worker.handler: {error}") from error.__cause__
    if not worker.forward:
        raise WorkerRefused(
            "worker: what executes the commands? Give --handler package.module:function or --forward URL"
        )
    from oncegate.app.commands.forward import ForwardedCommands
    from oncegate.app.upstream.forward import Forwarder
    from oncegate.middleware.rules.policies import Policies

    try:
        forwarder = Forwarder(
            worker.forward,
            connect_timeout=min(CONNECT_TIMEOUT, rules.response_timeout),
            keepalive=settings.upstream_keepalive,
            ca_file=settings.upstream_ca or None,
            max_idle=worker.concurrency,
            end_to_end=(rules.header, *worker.forward_headers),
            via=settings.via,
        )
    except (OSError, ValueError) as error:
        raise WorkerRefused(f"worker.forward: upstream_ca or the URL can't be used: {error}") from None
    return ForwardedCommands(forwarder, Policies(rules, settings.routes), worker.forward_headers)


def subscription_settings(settings: GatewaySettings) -> SubscriptionSettings:
    """The subscription's settings: the worker's own where given, else those of all routes."""
    rules = settings.idempotency
    return SubscriptionSettings(
        lease=rules.lease,
        ttl=rules.ttl,
        attempt_timeout=rules.attempt_timeout,
        max_result=rules.max_result,
        max_attempts=settings.worker.max_attempts,
        max_in_flight=2 * settings.worker.concurrency,
        on_missing_key="reject",
    )


def create_metrics(settings: GatewaySettings) -> "tuple[Watch, Pages] | tuple[None, None]":
    """The counters of a worker, and the pages that serve them, bound already. Raises `WorkerRefused`."""
    worker = settings.worker
    if not worker.metrics_port:
        return None, None
    from oncegate.app.server.pages import Pages
    from oncegate.prometheus import ConsumerMetrics

    try:
        pages = Pages(worker.metrics_host, worker.metrics_port, "worker.metrics_port")
    except OSError as error:
        raise WorkerRefused(str(error), FAILED) from None
    return ConsumerMetrics(worker.consumer_name, registry=pages.registry), pages


def create_tracing(settings: GatewaySettings) -> "ProcessTracing | None":
    """The traces of a worker's process; ``None`` where there are to be none. Raises `WorkerRefused`."""
    if not settings.tracing:
        return None
    from oncegate.app.telemetry.tracing import ProcessTracing, TracingRefused

    try:
        return ProcessTracing()
    except TracingRefused as refusal:
        raise WorkerRefused(str(refusal)) from None


def _maintenance(settings: GatewaySettings, executor: Executor) -> AbstractAsyncContextManager[None]:
    """Has the handler's inbox run what is parked while it is entered, and forget old markers, if it is to.

    Raises `WorkerRefused` where it is to and has none.
    """
    every = settings.worker.inbox_cleanup_interval
    if not every:
        following = executor.following if isinstance(executor, Handler) else None
        return nullcontext() if following is None else following()
    maintained = executor.maintained if isinstance(executor, Handler) else None
    if maintained is None:
        raise WorkerRefused("worker.inbox_cleanup_interval: the handler has no inbox: make it by Inbox.transaction")
    return maintained(every=every)


async def _work(
    settings: GatewaySettings,
    executor: Executor,
    cache: KeepsSubmissions,
    maintenance: AbstractAsyncContextManager[None],
    metrics: Watch | None,
    pages: "Pages | None",
    tracing: "ProcessTracing | None" = None,
) -> tuple[int, int]:
    """Run the worker; how many executions were left, and the exit code."""
    worker_settings, lease = settings.worker, settings.idempotency.lease
    name = f"{worker_settings.name or socket.gethostname()}/{os.getpid()}-{secrets.token_hex(3)}"
    timeout = max(STREAM_TIMEOUT, settings.cache_timeout)
    client = stream_client(settings.cache, timeout=timeout)
    reading = stream_client(settings.cache, timeout=timeout + BLOCK_MS / 1000)
    stream = CommandStream(client, settings.namespace, worker_settings.stream)
    limits = LetterLimits(MAX_DEAD_LETTERS, round(worker_settings.dead_letter_ttl * 1000))
    cache.past_maxmemory = True  # each command that is executed leaves the stream
    cache.tie(AHEAD_MS)
    subscription = Subscription(
        worker_settings.consumer_name,
        cache=cache,
        namespace=settings.namespace,
        secret=settings.given_secrets,
        settings=subscription_settings(settings),
        watch=metrics,
        name=worker_settings.name or "",
        tracing=None if tracing is None else tracing.tracing.messages("redis", worker_settings.stream),
    )
    if isinstance(executor, Handler):
        try:
            subscription.only(executor.function)
        except ValueError as error:
            raise WorkerRefused(f"worker.handler: {error}") from None
        if metrics is not None and executor.watched_by is not None:
            executor.watched_by(metrics)
    processing = Processing(
        subscription,
        executor,
        Backoff(RETRY_BASE, RETRY_CAP),
        recheck=Backoff(min(0.5, lease / 8), lease / 3),
        worker=name,
        life=SubmissionLife(
            cache,
            settings.namespace,
            worker_settings.consumer_name,
            prefix=settings.prefix,
            ttl=settings.idempotency.ttl,
        ),
        encryption=settings.encryption(),
    )
    worker = Worker(
        Group(stream, reading, worker_settings.consumer_name, name, limits),
        processing.process,
        concurrency=worker_settings.concurrency,
        idle=lease,
        trim=stream.trim,
    )
    stop_by_signals(worker.stop)
    async with AsyncExitStack() as at_end:
        if tracing is not None:
            tracing.start(for_all=True)
            at_end.push_async_callback(tracing.stop)
        for close in (reading.close, client.close, cache.close, executor.close):
            at_end.push_async_callback(close)
        if pages is not None:
            at_end.callback(pages.close)
            await pages.start()
        await _check(cache, settings)
        log.info("%s", version.running())
        log.info(
            "worker %s reads stream %s as %s (its group, too) in namespace %s, cache %s",
            *(name, worker_settings.stream, worker_settings.consumer_name, settings.namespace, redact(settings.cache)),
        )
        heartbeat = Heartbeat(cache, settings.namespace, name, partial(_entry, settings, name))
        heartbeat.start()
        at_end.push_async_callback(heartbeat.stop)
        async with maintenance:
            left = await worker.run(settings.shutdown_timeout)
        await subscription.drain(DRAIN_SECONDS)
        log.info("the worker has stopped")
        return left, FAILED if worker.ended_by_handler else 0


async def _entry(settings: GatewaySettings, name: str) -> dict[str, str]:
    """This process's entry in the cache, by which others see it."""
    worker = settings.worker
    reads = f"{worker.stream} as {worker.consumer_name}"
    return {"kind": "worker", "gateway": name, "configuration": settings_digest(settings), "reads": reads}


def _in_redis(cache: Cache) -> KeepsSubmissions:
    if not isinstance(cache, KeepsSubmissions):
        raise WorkerRefused("cache: a worker needs the Redis that the gateway uses")
    return cache


async def _check(cache: Cache, settings: GatewaySettings) -> None:
    try:
        for line in await cache.check():
            log.warning("%s", line)
        await check_secret(cache, settings.namespace, settings.digests())
    except CacheUnavailable as error:
        log.warning("the cache can't be reached yet, nothing is processed until then: %s", error)
    except CacheError as error:
        raise WorkerRefused(f"cache: {error}", FAILED) from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where that is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _end(code: int) -> int:
    """End the process although threads of handlers still run: Python would wait for them."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
