"""An OTLP receiver: a server that takes spans as a collector does (http/protobuf), and keeps them as they came."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from testing.waiting import wait_until


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, its ids in hex. ``links`` are spans of theirs: the ids of a trace and of a span."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    failed: bool
    start: int
    end: int

    @property
    def place(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


class Receiver:
    """A context manager: it serves while it is entered. ``raw`` is all that it was sent, decompressed; ``status`` its answer."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces" and receiver.status == 200:
                    receiver.raw.append(body)
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass  # a process was killed that was sending

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process send its spans here, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def spans(self) -> list[ReceivedSpan]:
        """All that were received, in the order of their beginning."""
        return sorted((span for body in list(self.raw) for span in _spans(body)), key=lambda span: span.start)

    def named(self, name: str, count: int = 1) -> list[ReceivedSpan]:
        """The spans of this name, once there are so many of them."""

        def found() -> list[ReceivedSpan]:
            return [span for span in self.spans() if span.name == name]

        wait_until(lambda: len(found()) >= count, f"{count} spans {name!r} of {[span.name for span in self.spans()]}")
        return found()

    def one(self, name: str) -> ReceivedSpan:
        (span,) = self.named(name)
        return span


_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


def _spans(body: bytes) -> Iterator[ReceivedSpan]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _attributes(of_resource.resource.attributes).get("service.name", "")
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield ReceivedSpan(
                    service,
                    span.name,
                    _KINDS[span.kind],
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    _attributes(span.attributes),
                    tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    span.status.code == 2,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
