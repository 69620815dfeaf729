"""A gateway's spans, as an OTLP receiver gets them: of a request, its attempt, the calls of the cache; and where they lead.

Rules of docs/contract.md: R4.38, R9.40, R9.41, R9.42.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from oncegate.app.settings.admin_tokens import AdminToken
from testing.command_line import ENVIRONMENT, invoke, run
from testing.gateway import Gateway
from testing.otlp import ReceivedSpan, Receiver
from testing.servers import RedisServer, free_port
from testing.upstreams import Peer, Upstream, answering, hanging, reset, resetting_after
from testing.waiting import until, wait_until

OK = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\ncontent-type: text/plain\r\n\r\nok"
KEY, TOKEN, BODY = "the-key-of-a-caller-4711", "a-token-nobody-may-see", '{"card":"4111111111111111"}'
WHO = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": KEY}
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ADMIN = "an-operators-token"
Start = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def received() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def start(received: Receiver, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Starts a gateway that sends its spans to the receiver; a client of it."""
    for name, value in received.environment.items():
        monkeypatch.setenv(name, value)

    @asynccontextmanager
    async def starting(upstream: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        settings = {"cache": redis_server.url, "namespace": tmp_path.name, "cache_timeout": 10, **settings}
        gateway = Gateway(
            tmp_path / "gateway", upstream, tracing=True, admin_tokens=[AdminToken.of("o", ADMIN).setting()], **settings
        )
        try:
            await asyncio.to_thread(gateway.ready)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, verify=False) as client:
                yield client
        finally:
            await asyncio.to_thread(gateway.end)

    return starting


async def test_a_first_request_its_attempt_and_the_calls_of_the_cache_are_one_trace(
    start: Start, received: Receiver
) -> None:
    async with Upstream(answering(OK)) as upstream, start(upstream.url) as client:
        await client.get("/")  # the gateway has a connection from here on
        lines = {**WHO, "traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=1"}
        await client.post("/payments?card=4111", content=BODY, headers=lines)
        sent = upstream.requests[-1]
        attempt = (await asyncio.to_thread(received.named, "POST", 2))[-1]
        complete = await asyncio.to_thread(received.one, "complete")
    server = next(span for span in received.named("POST") if span.kind == "server")
    assert (server.trace_id, server.parent_id) == (TRACE, CALLER)
    assert (attempt.kind, attempt.trace_id, attempt.parent_id) == ("client", TRACE, server.span_id)
    assert sent.value("traceparent") == f"00-{TRACE}-{attempt.span_id}-01"
    assert sent.value("tracestate") == "vendor=1"
    claim = received.one("claim")
    for call in (claim, complete):
        assert (call.kind, call.trace_id, call.parent_id) == ("client", TRACE, server.span_id)
        assert call.attributes["db.system.name"] == "redis"
    assert claim.start >= server.start
    assert claim.end <= attempt.start <= attempt.end <= complete.end
    own = {name: value for name, value in server.attributes.items() if name.startswith("oncegate.")}
    record = own.pop("oncegate.record")
    assert own == {"oncegate.decision": "first", "oncegate.replayed": False, "oncegate.attempt": 1}
    assert server.attributes["http.response.status_code"] == attempt.attributes["http.response.status_code"] == 201
    assert server.attributes["url.path"] == "/payments"
    assert attempt.attributes["oncegate.record"] == record
    assert attempt.attributes["oncegate.outcome"] == "succeeded"
    assert (server.service, server.failed, attempt.failed) == ("oncegate", False, False)


def of_requests(received: Receiver, count: int) -> list[ReceivedSpan]:
    """The spans of so many requests, in their order, once they are there."""

    def found() -> list[ReceivedSpan]:
        return [span for span in received.spans() if span.kind == "server" and span.name != "GET"]

    wait_until(lambda: len(found()) >= count, f"{count} requests of {received.spans()}")
    return found()


def of_attempts(received: Receiver) -> list[ReceivedSpan]:
    """The spans of attempts that have ended."""
    return [span for span in received.spans() if (span.kind, span.name) == ("client", "POST")]


async def test_a_replay_and_every_answer_by_a_record_lead_to_the_first_execution(
    start: Start, received: Receiver, tmp_path: Path
) -> None:
    async with Upstream(answering(OK)) as upstream, start(upstream.url) as client:
        await client.post("/payments", content=BODY, headers=WHO)
        replay = await client.post("/payments", content=BODY, headers=WHO)
        reused = await client.post("/payments", content="another", headers=WHO)
        duplicate = await client.post(
            "/payments", content=BODY, headers={**WHO, "Idempotency-Raise-On-Duplicate": "true"}
        )
        spans = await asyncio.to_thread(of_requests, received, 4)
        shown = await asyncio.to_thread(keys_show, client)
    first, *others = spans
    assert not first.links
    assert [span.links for span in others] == [(first.place,)] * 3
    assert {span.trace_id for span in others}.isdisjoint({first.trace_id})
    decisions = [(span.attributes["oncegate.decision"], span.attributes["oncegate.replayed"]) for span in others]
    assert decisions == [("replayed", True), ("key-reused", False), ("duplicate", False)]
    assert upstream.arrivals == 1
    assert replay.content == b"ok"
    assert reused.json()["original_trace_id"] == duplicate.json()["original_trace_id"] == first.trace_id
    assert duplicate.json()["original_result"]["status"] == 201
    assert f"trace {first.trace_id}" in " ".join(shown.split())


def keys_show(client: httpx.AsyncClient) -> str:
    done = invoke(
        *("keys", "show", KEY, "--caller", "-", "--gateway", str(client.base_url)),
        stdin=f"Authorization: Bearer {TOKEN}\n",
        ONCEGATE_ADMIN_TOKEN=ADMIN,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_what_passes_and_what_has_no_key_goes_on_with_the_trace(start: Start, received: Receiver) -> None:
    route = {"path": "/payments/*", "on_missing_key": "run"}
    async with Upstream(answering(OK)) as upstream, start(upstream.url, routes=[route]) as client:
        await client.get("/orders", headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
        await client.post("/payments/1", content="{}", headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
        await client.post("/payments/1", content="x" * 300_000)
        await client.post("/payments/1", content="{}", headers={"traceparent": "00-not-a-trace-01"})
        (passed,) = await asyncio.to_thread(received.named, "GET")
        without = await asyncio.to_thread(received.named, "POST /payments/*", 3)
    assert [span.parent_id for span in (passed, *without)] == [CALLER, CALLER, "", ""]
    sent = [str(request.value("traceparent")).rpartition("-")[0] for request in upstream.requests]
    assert sent == [f"00-{span.trace_id}-{span.span_id}" for span in (passed, *without)]
    for span in without:
        assert span.attributes["oncegate.decision"] == "bypass"
        assert span.attributes["http.route"] == "/payments/*"
        assert span.attributes["http.response.status_code"] == 201
    assert "oncegate.decision" not in passed.attributes


async def test_what_is_observed_has_its_own_span_with_what_would_have_been_decided(
    start: Start, received: Receiver
) -> None:
    """No attempt of ours; and under enforcement later a replay leads to the execution that was observed."""
    route = {"path": "/payments/*", "enforce": 0, "shadow": True}
    caller = {**WHO, "traceparent": f"00-{TRACE}-{CALLER}-01"}
    name = "POST /payments/*"
    async with Upstream(answering(OK)) as upstream:
        async with start(upstream.url, routes=[route]) as client:
            for headers, body in ((caller, BODY), (WHO, BODY), (WHO, "another"), ({}, BODY)):
                answer = await client.post("/payments/1", content=body, headers=headers)
                assert "idempotency-key" not in answer.headers
            observed = await asyncio.to_thread(received.named, name, 4)
            sent = [str(request.value("traceparent")).rpartition("-")[0] for request in upstream.requests]
        async with start(upstream.url, routes=[route | {"enforce": 100}]) as client:
            assert (await client.post("/payments/1", content=BODY, headers=WHO)).headers[
                "idempotent-replayed"
            ] == "true"
            replay = (await asyncio.to_thread(received.named, name, 5))[-1]
    first = observed[0]
    assert (first.trace_id, first.parent_id) == (TRACE, CALLER)
    assert sent == [f"00-{span.trace_id}-{span.span_id}" for span in observed], "what is executed is below each"
    own = [
        {name: value for name, value in span.attributes.items() if name.startswith("oncegate.")} for span in observed
    ]
    record = own[0].get("oncegate.record")
    assert record
    common = {"oncegate.mode": "shadow", "oncegate.replayed": False, "oncegate.attempt": 1, "oncegate.record": record}
    assert own[:3] == [common | {"oncegate.decision": decision} for decision in ("first", "replayed", "key-reused")]
    assert own[3] == {"oncegate.mode": "shadow", "oncegate.decision": "bypass"}
    assert [span.attributes["http.response.status_code"] for span in observed] == [201] * 4
    assert [span.links for span in (*observed, replay)] == [(), (first.place,), (first.place,), (), (first.place,)]
    calls = [(span.name, span.parent_id) for span in received.spans() if span.name in ("claim", "complete")]
    claims = [("claim", span.span_id) for span in (*observed[:3], replay)]
    assert sorted(calls) == sorted([*claims, ("complete", first.span_id)])
    assert not of_attempts(received)


async def test_the_span_of_a_websocket_is_that_of_its_handshake(start: Start, received: Receiver) -> None:
    upgraded: list[str | None] = []

    async def echo(connection: ServerConnection) -> None:
        assert connection.request is not None
        upgraded.append(connection.request.headers.get("traceparent"))
        async for message in connection:
            await connection.send(message)

    async with serve(echo, "127.0.0.1", 0) as service:
        port = service.sockets[0].getsockname()[1]
        async with (
            start(f"http://127.0.0.1:{port}") as client,
            connect(f"ws://127.0.0.1:{client.base_url.port}/feed") as connection,
        ):
            await connection.send("a")
            assert await connection.recv() == "a"
            (span,) = await asyncio.to_thread(received.named, "GET")
    assert span.attributes["http.response.status_code"] == 101
    assert [str(each).rpartition("-")[0] for each in upgraded] == [f"00-{span.trace_id}-{span.span_id}"]


@pytest.mark.parametrize("state", ["vendor=1,", "a=1,b=2", "t@v=x y"])
async def test_the_vendors_part_of_a_place_passes(state: str, start: Start, received: Receiver) -> None:
    async with Upstream(answering(OK)) as upstream, start(upstream.url) as client:
        lines = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": state}
        await client.get("/%FF%00?q", headers=lines)
        (span,) = await asyncio.to_thread(received.named, "GET")
    assert upstream.requests[0].value("tracestate") == state.rstrip(",")
    assert span.attributes["url.path"] == "/%FF%00"


@pytest.mark.parametrize("state", ["a-key-4711", "A=1", "a=1=2", ",".join(f"v{number}=1" for number in range(33))])
async def test_a_malformed_part_of_vendors_is_dropped_and_not_logged(
    state: str, start: Start, received: Receiver, tmp_path: Path
) -> None:
    async with Upstream(answering(OK)) as upstream, start(upstream.url) as client:
        await client.get("/", headers={"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": state})
        (span,) = await asyncio.to_thread(received.named, "GET")
    assert span.parent_id == CALLER
    assert upstream.requests[0].value("tracestate") is None
    assert state not in (tmp_path / "gateway").read_text()


async def test_what_is_not_sampled_is_not_sent_and_is_passed_on_as_such(start: Start, received: Receiver) -> None:
    async with Upstream(answering(OK)) as upstream, start(upstream.url) as client:
        unsampled = {**WHO, "traceparent": f"00-{TRACE}-{CALLER}-00"}
        await client.post("/payments", content=BODY, headers=unsampled)
        await client.get("/last")
        await asyncio.to_thread(received.one, "GET")
        sent = upstream.requests[0].value("traceparent")
    assert sent is not None
    assert sent.startswith(f"00-{TRACE}-")
    assert sent.endswith("-00")
    assert [span.name for span in received.spans()] == ["GET"]


async def test_an_attempt_lives_on_when_its_request_is_over(start: Start, received: Receiver) -> None:
    """Both ways of that: the client has left, and the gateway has answered before the upstream did."""
    answer = asyncio.Event()
    rules = {"response_timeout": 1.5}
    async with (
        Upstream(answering(OK, after=answer)) as upstream,
        start(upstream.url, idempotency=rules) as client,
    ):
        late = await client.post("/payments", content=BODY, headers=WHO)
        assert late.status_code == 504
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(b"POST /payments HTTP/1.1\r\nhost: a\r\nidempotency-key: another\r\ncontent-length: 2\r\n\r\n{}")
        await upstream.received(2)
        reset(writer)
        servers = await asyncio.to_thread(of_requests, received, 2)
        assert not [span for span in received.spans() if span.kind == "client" and span.name == "POST"]
        answer.set()
        attempts = [span for span in await asyncio.to_thread(received.named, "POST", 4) if span.kind == "client"]
    assert servers[0].failed
    assert [span.attributes.get("http.response.status_code") for span in servers] == [504, None]
    for server, attempt in zip(servers, attempts, strict=True):
        assert attempt.parent_id == server.span_id
        assert attempt.end > server.end
        assert attempt.attributes["oncegate.outcome"] == "succeeded"


async def test_an_attempt_without_a_known_outcome_has_failed(start: Start, received: Receiver) -> None:
    async with Upstream(resetting_after()) as upstream, start(upstream.url) as client:
        assert (await client.post("/payments", content=BODY, headers=WHO)).status_code == 502
        server, attempt = await asyncio.to_thread(received.named, "POST", 2)
    assert (server.failed, attempt.failed) == (True, True)
    assert attempt.attributes["oncegate.outcome"] == attempt.attributes["error.type"] == "unknown"


async def test_no_span_has_a_key_a_token_or_a_body(start: Start, received: Receiver, redis_server: RedisServer) -> None:
    """Of whatever is sent, in whatever way it is answered."""
    route = {"path": "/commands", "mode": "async", "on_missing_key": "reject"}
    secrets = [KEY, TOKEN, "4111111111111111", "a-query-for-nobody", "an-etag-of-nobody"]
    async with (
        Upstream(answering(OK.replace(b"\r\n\r\nok", b"\r\netag: an-etag-of-nobody\r\n\r\nok"))) as upstream,
        start(upstream.url, routes=[route]) as client,
    ):
        for body in (BODY, BODY, "another", BODY * 20_000):
            await client.post("/payments?q=a-query-for-nobody", content=body, headers=WHO)
        commands = {**WHO, "Idempotency-Key": f"{KEY}-2"}
        answers = [await client.post("/commands", content=BODY, headers=each) for each in (commands, commands, {})]
        assert [answer.status_code for answer in answers] == [202, 202, 400]
        await client.get("/payments?q=a-query-for-nobody", headers=WHO)
        await asyncio.to_thread(received.named, "GET")
        await asyncio.to_thread(of_requests, received, 7)
    found = {secret for secret in secrets if any(secret.encode() in body for body in received.raw)}
    assert not found
    (sent,) = [span for span in received.spans() if span.kind == "producer"]
    assert sent.attributes["messaging.destination.name"] == "commands"


@pytest.mark.parametrize("answer", [503, 0, None], ids=["refuses", "is away", "is silent"])
async def test_a_collector_that_takes_nothing_holds_up_neither_requests_nor_the_end(
    answer: int | None, tmp_path: Path, received: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in received.environment.items():
        monkeypatch.setenv(name, value)
    received.status = answer or 200
    async with Upstream(answering(OK)) as upstream, Upstream(hanging) as silent:
        if not answer:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
            away = f"http://127.0.0.1:{free_port()}"
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", silent.url if answer is None else away)
        gateway = Gateway(tmp_path / "gateway", upstream.url, tracing=True, shutdown_timeout=600)
        try:
            await asyncio.to_thread(gateway.ready)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, verify=False) as client:
                for number in range(20):
                    lines = {**WHO, "Idempotency-Key": f"key-{number}"}
                    assert (await client.post("/payments", content=BODY, headers=lines)).status_code == 201
            if answer is None:
                await silent.received(1)
            gateway.terminate()
            assert await asyncio.to_thread(gateway.exit_code) == 0
        finally:
            await asyncio.to_thread(gateway.end)
    assert "Traceback" not in gateway.text()
    assert answer is not None or "spans are left that could not be sent" in gateway.text()


async def test_spans_that_wait_are_sent_at_the_end(
    received: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**received.environment, "OTEL_BSP_SCHEDULE_DELAY": "600000"}.items():
        monkeypatch.setenv(name, value)
    async with Upstream(answering(OK)) as upstream:
        gateway = Gateway(tmp_path / "gateway", upstream.url, tracing=True)
        try:
            await asyncio.to_thread(gateway.ready)
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, verify=False) as client:
                await client.post("/payments", content=BODY, headers=WHO)
            assert not received.raw
            gateway.terminate()
            assert await asyncio.to_thread(gateway.exit_code) == 0
        finally:
            await asyncio.to_thread(gateway.end)
    assert {"POST", "claim", "complete"} <= {span.name for span in received.spans()}


async def test_each_worker_of_several_sends_its_spans(
    received: Receiver, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes and sends them is begun after the fork. All is sent at the latest when they end in order."""
    for name, value in received.environment.items():
        monkeypatch.setenv(name, value)
    requests = 0
    async with Upstream(answering(OK)) as upstream:
        gateway = Gateway(
            *(tmp_path / "gateway", upstream.url, redis_server.url), workers=2, tracing=True, cache_timeout=10
        )
        try:
            await asyncio.to_thread(gateway.ready)
            pids = set(map(str, gateway.workers()))
            served: set[str] = set()
            while served < pids:
                async with httpx.AsyncClient(base_url=gateway.url, timeout=60, verify=False) as client:
                    lines = {**WHO, "Idempotency-Key": f"key-{requests}"}
                    await client.post("/payments", content=BODY, headers=lines)
                requests += 1
                served = {pid for pid in pids if f'"process": {pid}, "message": "first' in gateway.text()}
            gateway.terminate()
            assert await asyncio.to_thread(gateway.exit_code) == 0
        finally:
            await asyncio.to_thread(gateway.end)
    assert len(of_requests(received, requests)) == requests


async def test_tracing_goes_on_in_every_worker_after_a_reload(
    received: Receiver, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans are named by the routes of the configuration in effect, and an attempt that has begun before has its end."""
    for name, value in received.environment.items():
        monkeypatch.setenv(name, value)
    (file := tmp_path / "oncegate.toml").write_text("")
    held = asyncio.Event()
    sent = 0

    async def behave(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if " /held " in request.line:
                await held.wait()
            await peer.send(OK)

    async with Upstream(behave) as upstream:
        settings: dict[str, Any] = {
            "namespace": tmp_path.name,
            "cache_timeout": 10,
            "tracing": True,
            "config": str(file),
        }
        gateway = Gateway(tmp_path / "gateway", upstream.url, redis_server.url, workers=2, **settings)

        async def pay(path: str) -> None:
            nonlocal sent
            sent += 1
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60, verify=False) as client:
                headers = {**WHO, "Idempotency-Key": f"key-{sent}"}
                await client.get("/passes")
                assert (await client.post(path, content=BODY, headers=headers)).status_code == 201

        async def each_worker_serves(since: int) -> None:
            pids = set(map(str, gateway.workers()))
            served: set[str] = set()
            while served < pids:
                await pay("/payments/1")
                served = {pid for pid in pids if f'"process": {pid}, "message": "first' in gateway.text()[since:]}

        try:
            await asyncio.to_thread(gateway.ready)
            slow = asyncio.create_task(pay("/held"))
            await upstream.received(2)
            await each_worker_serves(0)
            before = sent
            for number in (1, 2):
                file.write_text(f'[[routes]]\npath = "/payments/*"\nttl = {number * 3600}\n')
                os.kill(gateway.pid, signal.SIGHUP)
                await until(lambda count=number: gateway.text().count('"reloaded: ') == count, "reloaded")  # type: ignore[misc]  # the loop's value is bound on purpose
            await each_worker_serves(len(gateway.text()))
            held.set()
            await slow
            named = await asyncio.to_thread(received.named, "POST /payments/*", sent - before)
            ours = await asyncio.to_thread(of_requests, received, sent)
            await until(lambda: len(of_attempts(received)) == sent, "each attempt has its span")
            passed = await asyncio.to_thread(received.named, "GET", sent)
        finally:
            held.set()
            await asyncio.to_thread(gateway.end)
    assert (len(named), len(ours)) == (sent - before, sent)
    assert {span.attributes["http.route"] for span in named} == {"/payments/*"}
    assert {span.parent_id for span in of_attempts(received)} == {span.span_id for span in ours}
    traceparents = [str(request.value("traceparent")).rpartition("-")[0] for request in upstream.requests]
    assert sorted(traceparents) == sorted(
        f"00-{span.trace_id}-{span.span_id}" for span in (*passed, *of_attempts(received))
    )


_OFF = """
import asyncio, sys
from testing.served import served
from testing.upstreams import Peer, Upstream, answering

async def main():
    async with Upstream(answering(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\nok")) as upstream:
        async with served(upstream.url, namespace="off") as (client, gateway):
            for _ in range(2):
                answer = await client.post("/", content="{}", headers={"Idempotency-Key": "k", "traceparent": "00-1-1-00"})
                assert answer.status_code == 200
            print(sorted(name for name in sys.modules if name.startswith(("opentelemetry", "oncegate.otel", "google"))))
            await gateway.operations.load()  # some versions of FastAPI load the API themselves
        assert upstream.requests[0].value("traceparent") == "00-1-1-00"
        assert upstream.arrivals == 1

asyncio.run(main())
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter", "oncegate.otel"))))
"""


def test_off_nothing_of_it_is_imported_and_traceparent_passes_as_it_came() -> None:
    done = subprocess.run([sys.executable, "-c", _OFF], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[]", "[]"]


_WITHOUT = "import sys; sys.modules['opentelemetry.sdk'] = None; from oncegate.app.cli.main import main; main()"


@pytest.mark.parametrize("command", ["serve", "check", "worker"])
def test_without_the_extra_one_line_says_what_is_to_be_installed(command: str) -> None:
    options = ["--upstream", "http://127.0.0.1:9"] if command != "worker" else ["--cache", "redis://127.0.0.1:9"]
    environment = ENVIRONMENT | {"ONCEGATE_TRACING": "true", "ONCEGATE_WORKER__FORWARD": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, command, *options],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 2
    assert "pip install oncegate[otel]" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]
)
def test_a_way_of_sending_that_there_is_none_of_is_refused_in_one_line(name: str, value: str) -> None:
    done = run("serve", "--upstream", "http://127.0.0.1:9", ONCEGATE_TRACING="true", **{name: value})
    assert done.returncode == 2
    assert name in done.stderr
    assert len(done.stderr.splitlines()) == 1
