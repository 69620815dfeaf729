"""One story, from a request to the consumer of what its command has published, as an OTLP receiver gets it.

Rules of docs/contract.md: R9.42, R12.74.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from faststream.redis import RedisBroker, StreamSub
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from oncegate import Delivery, NotRetryable, Subscription
from oncegate.faststream import SubscriptionMiddleware
from oncegate.otel import Tracing
from oncegate.sql import Inbox
from testing.command_line import Running, forked
from testing.otlp import ReceivedSpan, Receiver
from testing.waiting import wait_until
from tests.worker.traced import INVOICES

KEY, MESSAGE_KEY, NAME = "the-key-of-a-command-4711", "the-key-of-a-message-4712", "somebody-whose-name-is-secret"
ROUTES = [{"path": "/bookings", "mode": "async", "on_missing_key": "reject"}]
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def received() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def environment(received: Receiver, redis_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        **received.environment,
        "ONCEGATE_TRACING": "true",
        "ONCEGATE_CACHE": redis_url,
        "ONCEGATE_CACHE_TIMEOUT": "10",
        "ONCEGATE_NAMESPACE": tmp_path.name,
        "ONCEGATE_ROUTES": json.dumps(ROUTES),
        "BOOKS_URL": f"sqlite:///{tmp_path}/books.sqlite",
        "TOPIC": f"{tmp_path.name}-invoices",
    }


def ended(process: Running) -> None:
    assert process.stop() == 0, process.output


def own(span: ReceivedSpan) -> dict[str, Any]:
    return {name: value for name, value in span.attributes.items() if name.startswith("oncegate.")}


def message_at(redis_url: str, topic: str) -> dict[str, bytes]:
    with redis.Redis.from_url(redis_url) as client:
        entries: Any = wait_until(lambda: client.xrange(topic), "the relay has published")
    return {name.decode(): value for name, value in entries[0][1].items()}


async def consumed(received: Receiver, redis_url: str, tmp_path: Path, message: dict[str, bytes]) -> None:
    """Consume the message twice, by a hook and an inbox whose spans are sent to the receiver, too."""
    provider = TracerProvider(resource=Resource({"service.name": "invoicing"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{received.url}/v1/traces")))
    tracing = Tracing(provider).messages("redis", "invoices")
    subscription = Subscription("invoicing", cache=redis_url, namespace=tmp_path.name, tracing=tracing)
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/invoices.sqlite")
    inbox, metadata = Inbox("invoicing"), MetaData()
    inbox.table(metadata)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)

    @inbox.transaction(async_sessionmaker(engine))
    async def send_invoice(payload: dict[str, str], session: AsyncSession) -> str:
        provider.get_tracer("invoicing").start_span("sending").end()
        return payload["name"]

    delivery = Delivery(
        message["key"].decode(),
        message["body"],
        message_id="17-0",
        traceparent=json.loads(message["headers"])["traceparent"],
    )
    for decision in ("run", "duplicate"):
        begun = await subscription.execute(delivery, send_invoice, json.loads(message["body"]))
        assert begun.decision == decision
    await subscription.drain()
    await subscription.cache.close()
    await engine.dispose()
    provider.shutdown()


def test_a_command_is_one_trace_from_its_request_to_the_consumer_of_what_it_has_published(
    received: Receiver, environment: dict[str, str], redis_url: str, tmp_path: Path
) -> None:
    engine = create_engine(environment["BOOKS_URL"])
    metadata = MetaData()
    INVOICES.tables(metadata)
    metadata.create_all(engine)
    engine.dispose()
    body = json.dumps({"name": NAME, "message_key": MESSAGE_KEY})
    lines = {"Idempotency-Key": KEY, "Content-Type": "application/json"}
    serve = ["serve", "--upstream", "http://127.0.0.1:9", "--port", "0"]
    relay = ["relay", "--database", f"sqlite+aiosqlite:///{tmp_path}/books.sqlite", "--to", redis_url, "--tracing"]
    with (
        forked(*serve, **environment) as gateway,
        forked("worker", "--handler", "tests.worker.traced:book", **environment, OTEL_SERVICE_NAME="worker") as worker,
        forked(*relay, **environment, OTEL_SERVICE_NAME="relay") as relaying,
    ):
        url = gateway.url()
        with httpx.Client(base_url=url, timeout=60, verify=False) as client:
            begun = {**lines, "traceparent": f"00-{TRACE}-{CALLER}-01"}
            for headers in (begun, lines):
                assert client.post("/bookings", content=body, headers=headers).status_code == 202
        message = message_at(redis_url, environment["TOPIC"])
        asyncio.run(consumed(received, redis_url, tmp_path, message))
        for process in (gateway, worker, relaying):
            ended(process)

    request, replay = received.named("POST /bookings", 2)
    submission, processed = received.one("send commands"), received.one("process commands")
    booking, published = received.one("booking"), received.one(f"send {environment['TOPIC']}")
    consumption, duplicate = received.named("process invoices", 2)
    story = [request, submission, processed, booking, published, consumption]
    assert [span.trace_id for span in (*story, duplicate)] == [TRACE] * 7
    assert [span.parent_id for span in story] == [CALLER, *[span.span_id for span in story[:-1]]]
    services = ["oncegate", "oncegate", "worker", "worker", "relay", "invoicing"]
    assert [span.service for span in story] == services
    kinds = ["server", "producer", "consumer", "internal", "producer", "consumer"]
    assert [span.kind for span in story] == kinds
    assert processed.links == (submission.place,)
    assert consumption.links == (published.place,)
    assert set(duplicate.links) == {published.place, consumption.place}
    assert replay.links == (request.place,)
    assert replay.trace_id != request.trace_id
    assert received.one("sending").parent_id == consumption.span_id
    assert own(consumption)["oncegate.inbox"] == "first"
    assert [own(span)["oncegate.decision"] for span in (processed, consumption, duplicate)] == [
        "run",
        "run",
        "duplicate",
    ]
    assert own(processed)["oncegate.outcome"] == "succeeded"
    assert processed.attributes["messaging.consumer.group.name"] == "commands"
    assert processed.attributes["messaging.system"] == published.attributes["messaging.system"] == "redis"
    for secret in (KEY, MESSAGE_KEY, NAME):
        assert not any(secret.encode() in sent for sent in received.raw)


async def test_a_service_that_a_worker_forwards_to_is_a_part_of_the_attempt(
    received: Receiver, environment: dict[str, str], redis_url: str, tmp_path: Path
) -> None:
    from testing.upstreams import Upstream, answering
    from tests.worker.shop import Shop

    shop = Shop(redis_url, tmp_path)
    try:
        async with Upstream(answering(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok")) as service:
            environment |= {"ONCEGATE_NAMESPACE": shop.namespace}
            with forked("worker", "--forward", service.url, **environment) as worker:
                shop.submit("k", {}, traceparent=f"00-{TRACE}-{CALLER}-01")
                await service.received(1)
                processed = await asyncio.to_thread(received.one, "process commands")
                await asyncio.to_thread(ended, worker)
            assert service.requests[0].value("traceparent") == f"00-{TRACE}-{processed.span_id}-01"
            assert (processed.parent_id, processed.links) == (CALLER, ((TRACE, CALLER),))
    finally:
        shop.close()


async def test_what_a_handler_raises_is_in_its_span(received: Receiver, redis_url: str, tmp_path: Path) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{received.url}/v1/traces")))
    subscription = Subscription("raising", cache=redis_url, namespace=tmp_path.name, tracing=Tracing(provider))

    async def refuse(_: bytes) -> None:
        raise NotRetryable(NAME)

    await subscription.execute(Delivery(KEY, b"{}"), refuse, b"{}")
    assert trace.get_current_span() is trace.INVALID_SPAN  # a worker goes on in the same task
    await subscription.execute(Delivery(None, b"{}"), refuse, b"{}")
    await subscription.cache.close()
    provider.shutdown()
    first, unkeyed = received.named("process raising", 2)
    assert own(first) == {
        "oncegate.attempt": 1, "oncegate.decision": "run", "oncegate.outcome": "failed",
        "oncegate.record": own(first)["oncegate.record"],
    }  # fmt: skip
    assert own(unkeyed) == {"oncegate.decision": "run", "oncegate.outcome": "failed"}
    assert (first.failed, unkeyed.failed) == (True, True)
    assert not any(secret.encode() in sent for sent in received.raw for secret in (KEY, NAME))


async def test_a_consumer_of_a_broker_goes_on_with_the_trace_of_its_message(
    received: Receiver, redis_url: str, tmp_path: Path
) -> None:
    """By the header that a relay, or anybody else, has set."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{received.url}/v1/traces")))
    tracing = Tracing(provider).messages("redis", "invoices")
    subscription = Subscription("invoicing", cache=redis_url, namespace=tmp_path.name, tracing=tracing)
    broker = RedisBroker(redis_url, middlewares=[SubscriptionMiddleware(subscription)])
    stream, seen = f"{tmp_path.name}-invoices", asyncio.Event()

    @broker.subscriber(stream=StreamSub(stream, group="invoicing", consumer="1", last_id="0"))
    async def send_invoice(payload: dict[str, str]) -> None:
        provider.get_tracer("invoicing").start_span("sending").end()
        seen.set()

    async with broker:
        lines = {"Idempotency-Key": KEY, "traceparent": f"00-{TRACE}-{CALLER}-01"}
        await broker.start()
        await broker.publish({"name": NAME}, stream=stream, headers=lines)
        await asyncio.wait_for(seen.wait(), 60)
        processed = await asyncio.to_thread(received.one, "process invoices")
    await subscription.drain()
    await subscription.cache.close()
    provider.shutdown()
    assert (processed.trace_id, processed.parent_id, processed.links) == (TRACE, CALLER, ((TRACE, CALLER),))
    assert received.one("sending").parent_id == processed.span_id
    assert processed.attributes["messaging.message.id"].startswith(f"{stream}/")
    assert not any(secret.encode() in sent for sent in received.raw for secret in (KEY, NAME))
