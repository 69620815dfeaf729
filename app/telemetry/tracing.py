"""Traces of the gateway, of a worker and of a relay, sent as the environment says (``OTEL_*``), by OTLP over HTTP.

What makes and sends spans is begun in the process that does so, after any fork. Spans are sent by a thread, from a queue of
bounded size: a collector that is away, or slow, costs spans and holds up no request.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from oncegate import __version__
from oncegate.app.settings.loading.sources import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("oncegate.tracing")

FLUSH_SECONDS: Final = 5.0
"""The time at the end for spans that were not sent yet."""
SERVICE: Final = "oncegate"
"""The service's name where ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` have none."""
_MISSING: Final = "tracing: needs opentelemetry: pip install oncegate[otel], or set tracing = false"


class TracingRefused(ConfigurationError):
    """Spans can't be made, or sent as it is asked for. The text is one line for the operator."""


class ProcessTracing:
    """The traces of a process. `start` where it runs, `stop` at its end; ``tracing`` is for whatever is traced in it.

    Raises `TracingRefused`.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        try:  # some versions of FastAPI bring the API alone
            import opentelemetry.exporter.otlp.proto.http.trace_exporter
            import opentelemetry.sdk.trace.export  # noqa: F401 - looked for here, before any fork

            from oncegate.otel import Tracing
        except ImportError as error:
            raise TracingRefused(_MISSING) from error
        self._exports = _exports(environment)
        self._provider: TracerProvider | None = None
        self.tracing = Tracing()

    def start(self, *, for_all: bool = False) -> None:
        """Make spans from now on, and send them; ``for_all``: also what else makes spans in this process, as handlers do."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        found = trace.get_tracer_provider()
        if for_all and isinstance(
            found, TracerProvider
        ):  # a handler's module has set up its own, which spans go to as well
            self.tracing.use(found)
            return
        self._provider = provider = _provider(exports=self._exports)
        if for_all:
            trace.set_tracer_provider(provider)
        self.tracing.use(provider)

    async def stop(self) -> None:
        """Send what is left, for a bounded time."""
        provider, self._provider = self._provider, None
        if provider is None:
            return
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            provider.shutdown()
            loop.call_soon_threadsafe(done.set)

        # No thread of the loop's: the end of the process would wait for it.
        threading.Thread(target=_quietly, args=(shut_down,), daemon=True, name="oncegate-spans").start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await done.wait()
        except TimeoutError:
            log.warning("spans are left that could not be sent in %g s", FLUSH_SECONDS)


def _exports(environment: Mapping[str, str]) -> bool:
    """Whether spans are sent at all. Raises `TracingRefused` for a way of sending that there is none of."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if exporter not in ("otlp", "none"):
        raise TracingRefused(f"tracing: OTEL_TRACES_EXPORTER is {exporter[:40]!r}: spans are sent by otlp, or none")
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if exporter == "otlp" and (protocol or "http/protobuf") != "http/protobuf":
        raise TracingRefused(
            f"tracing: OTEL_EXPORTER_OTLP_PROTOCOL is {str(protocol)[:40]!r}: spans are sent by http/protobuf (port 4318)"
        )
    return exporter == "otlp"


def _provider(*, exports: bool) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()  # of the environment
    ours: dict[str, Any] = {SERVICE_VERSION: __version__, **resource.attributes}
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        ours[SERVICE_NAME] = SERVICE
    provider = TracerProvider(resource=Resource(ours), shutdown_on_exit=False)
    if exports:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _quietly(work: Any) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # at the end of a process: the loop may be closed, an exporter broken
        log.warning("spans are left that could not be sent: %s", type(error).__name__)
