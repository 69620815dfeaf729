"""The spans of an app's middleware: what the app traces in an attempt is a part of it, and each answer says what it was.

Rules of docs/contract.md: R9.42, R12.74.
"""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from oncegate import IdempotencyMiddleware, IdempotencySettings, MemoryCache, NotProcessed, OutcomeUnknown, Route
from oncegate.otel import Tracing
from testing.asgi_client import Client
from testing.waiting import until

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEY = (b"idempotency-key", b"a-key-4711")


class Traced:
    """An app behind the middleware that traces what it does. ``answer`` is its status, or what it raises."""

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("app")
        self.answer: int | Exception = 201
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.received: list[dict[bytes, bytes]] = []
        self.middleware = IdempotencyMiddleware(
            self._app, cache=MemoryCache(), tracing=Tracing(self.provider), **settings
        )

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.received.append(dict(scope["headers"]))
        with self.tracer.start_as_current_span("the app's own"):
            await self.go_on.wait()
            if isinstance(self.answer, Exception):
                raise self.answer
            await send({"type": "http.response.start", "status": self.answer, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

    async def post(self, *headers: tuple[bytes, bytes], path: bytes = b"/payments", body: bytes = b"{}") -> Client:
        return await Client("POST", path, headers, [body]).call(self.middleware)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def parent(span: ReadableSpan) -> str:
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def own(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


async def test_what_the_app_traces_is_a_part_of_the_attempt() -> None:
    there = Traced(routes=[Route(path="/payments")])
    await there.post(KEY, (b"traceparent", f"00-{TRACE}-{CALLER}-01".encode()))
    request, attempt, inner = there.one("POST /payments"), there.one("attempt POST"), there.one("the app's own")
    assert [parent(span) for span in (request, attempt, inner)] == [CALLER, own(request), own(attempt)]
    assert (request.kind, attempt.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert there.received[0][b"traceparent"] == f"00-{TRACE}-{own(attempt)}-01".encode()
    claim = there.one("claim")
    assert (claim.kind, parent(claim)) == (SpanKind.INTERNAL, own(request))  # in memory: no call to anybody
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_an_observed_request_has_the_apps_own_spans_and_none_of_ours() -> None:
    there = Traced(settings=IdempotencySettings(enforce=0, shadow=True))
    with there.tracer.start_as_current_span("server"):
        for _ in range(2):
            assert (await there.post(KEY)).status == 201
        await there.post()
    await there.middleware.drain(5)
    assert {span.name for span in there.exporter.get_finished_spans()} == {"server", "the app's own"}
    server = there.one("server")
    assert {parent(span) for span in there.named("the app's own")} == {own(server)}
    assert not [name for name in server.attributes or {} if name.startswith("oncegate.")]


async def test_under_the_apps_own_instrumentation_the_request_is_a_part_of_that() -> None:
    there = Traced()
    with there.tracer.start_as_current_span("server"):
        await there.post(KEY, (b"traceparent", f"00-{TRACE}-{CALLER}-01".encode()))
    server, request = there.one("server"), there.one("POST")
    assert (request.kind, parent(request)) == (SpanKind.INTERNAL, own(server))


@pytest.mark.parametrize(
    ("answer", "outcome", "status"),
    [
        (201, "succeeded", StatusCode.UNSET),
        (404, "failed", StatusCode.UNSET),
        (500, "failed", StatusCode.ERROR),
        (429, "released", StatusCode.UNSET),
        (NotProcessed("a-key-4711"), "released", StatusCode.UNSET),
        (OutcomeUnknown("a-key-4711"), "unknown", StatusCode.ERROR),
        (ValueError("a-key-4711"), "failed", StatusCode.ERROR),
    ],
    ids=str,
)
async def test_an_attempts_span_says_how_it_ended(answer: int | Exception, outcome: str, status: StatusCode) -> None:
    there = Traced()
    there.answer = answer
    with suppress(ValueError):
        await there.post(KEY)
    attempt = there.one("attempt POST")
    assert attempt.attributes is not None
    assert (attempt.attributes["oncegate.outcome"], attempt.status.status_code) == (outcome, status)
    assert there.named("release" if outcome == "released" else "complete")
    for span in (attempt, there.one("POST")):
        assert "a-key-4711" not in span.to_json()


async def test_every_answer_says_what_it_was() -> None:
    there = Traced(settings=IdempotencySettings(on_missing_key="reject"))
    await there.post(KEY)
    await there.post(KEY)
    await there.post(KEY, body=b"another")
    await there.post()
    await there.post((b"idempotency-key", b""))
    decisions = [dict(span.attributes or {})["oncegate.decision"] for span in there.named("POST")]
    assert decisions == ["first", "replayed", "key-reused", "key-missing", "key-invalid"]
    first, *others = there.named("POST")
    assert [[own_of_link(link) for link in span.links] for span in others] == [[own(first)], [own(first)], [], []]


def own_of_link(link: Any) -> str:
    return f"{link.context.span_id:016x}"


async def test_an_attempt_lives_on_after_its_client_has_left() -> None:
    there = Traced()
    there.go_on.clear()
    leaving = asyncio.create_task(there.post(KEY))
    await until(lambda: there.received)
    leaving.cancel()
    await asyncio.wait([leaving])
    waits = asyncio.create_task(there.post(KEY, (b"prefer", b"wait=20")))
    there.go_on.set()
    assert (await waits).status == 201
    attempt = there.one("attempt POST")
    assert attempt.attributes is not None
    assert attempt.attributes["oncegate.outcome"] == "succeeded"
    replay = there.named("POST")[-1]
    assert attempt.parent is not None
    assert [link.context.trace_id for link in replay.links] == [attempt.parent.trace_id]


async def test_what_has_no_key_has_no_span_of_ours() -> None:
    there = Traced()
    await there.post((b"traceparent", b"00-1-1-00"))
    assert [span.name for span in there.exporter.get_finished_spans()] == ["the app's own"]
    assert there.received[0][b"traceparent"] == b"00-1-1-00"
