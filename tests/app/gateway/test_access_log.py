"""The access log: a line for each request, with what became of it; and the id that it goes by, up and back.

Rules of docs/contract.md: R3.27, R3.28, R4.37, R11.30, R11.31.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.app.settings.loading.sources import ConfigurationError
from testing.inside import without_fast_path
from testing.served import raw, served
from testing.servers import free_port
from testing.upstreams import OK, Peer, Upstream, answering, closing_after, hanging
from testing.waiting import until
from tests.app.fast_path import talking
from tests.app.tunnelling import HANDSHAKE, SWITCHING

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
CREATED = b"HTTP/1.1 201 Created\r\ncontent-length: 7\r\nx-request-id: the-upstream-s\r\n\r\ncreated"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MEMBERS = {
    *("time", "client", "protocol", "method", "path", "route", "status", "bytes_in", "bytes_out", "decision", "record"),
    *("attempt", "ms", "cache_ms", "upstream_ms", "request_id", "trace_id", "ended"),
}


class Followed:
    """A gateway with an access log, and the lines in that."""

    def __init__(self, client: httpx.AsyncClient, gateway: Gateway, path: Path) -> None:
        self.client = client
        self.gateway = gateway
        self._path = path

    def lines(self) -> list[Any]:
        text = self._path.read_text("ascii")
        return [json.loads(line) for line in text.splitlines()] if text.endswith("\n") else []

    async def first(self, count: int) -> list[Any]:
        """So many lines, of requests that are over, and no more."""
        await until(lambda: len(self.lines()) >= count, f"{count} lines")
        assert len(self.lines()) == count
        return self.lines()


@asynccontextmanager
async def followed(
    upstream: str, path: Path, *, fast_path: bool = True, access_log: str = "json", **settings: Any
) -> AsyncIterator[Followed]:
    log = path / "access.log"
    async with served(upstream, access_log=access_log, access_log_file=str(log), **settings) as (client, gateway):
        if not fast_path:
            without_fast_path(gateway)
        yield Followed(client, gateway, log)


@pytest.mark.parametrize("fast_path", [True, False])
@pytest.mark.both_loops
async def test_each_request_has_a_line(tmp_path: Path, fast_path: bool) -> None:
    routes = [{"path": "/payments/{id}"}]
    async with (
        Upstream(answering(CREATED)) as upstream,
        followed(upstream.url, tmp_path, fast_path=fast_path, routes=routes) as there,
    ):
        headers = {"Idempotency-Key": "k-1", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "X-Request-Id": "mine"}
        await there.client.post("/payments/1?secret=1", content=b"12345", headers=headers)
        first, *_ = await there.first(1)
        assert set(first) == MEMBERS
        assert INSTANT.fullmatch(first["time"])
        assert first["client"] == "127.0.0.1"
        assert (first["protocol"], first["method"], first["path"]) == ("HTTP/1.1", "POST", "/payments/1")
        assert (first["route"], first["status"], first["decision"]) == ("/payments/{id}", 201, "first")
        assert (first["bytes_in"], first["bytes_out"], first["attempt"], first["ended"]) == (5, 7, 1, "whole")
        assert re.fullmatch("[0-9a-zA-Z_.-]{20}:[0-9a-zA-Z_.-]{20}", first["record"])
        assert (first["request_id"], first["trace_id"]) == ("mine", TRACE)
        assert first["ms"] >= first["upstream_ms"] > 0
        assert first["cache_ms"] > 0

        again = await there.client.post(
            "/payments/1?secret=1", content=b"12345", headers={"Idempotency-Key": "k-1", "X-Request-Id": "again"}
        )
        other = await there.client.post("/payments/1", content=b"else", headers={"Idempotency-Key": "k-1"})
        await there.client.post("/payments/1", content=b"1")
        await there.client.get("/payments")
        _, replayed, refused, bypass, passing = await there.first(5)
        assert (replayed["decision"], replayed["status"], replayed["bytes_out"]) == ("replayed", 201, 7)
        assert replayed["record"] == first["record"]
        assert (replayed["attempt"], replayed["upstream_ms"], replayed["trace_id"]) == (1, None, None)
        assert replayed["cache_ms"] > 0
        assert again.headers.get_list("x-request-id") == ["again"] == [replayed["request_id"]]
        problem = other.json()
        assert (refused["decision"], refused["status"], refused["record"]) == ("key-reused", 422, first["record"])
        assert refused["request_id"] == problem["request_id"] == other.headers["x-request-id"]
        assert refused["bytes_out"] == len(other.content)
        assert (bypass["decision"], bypass["route"], bypass["record"]) == ("bypass", "/payments/{id}", None)
        assert (bypass["cache_ms"], bypass["attempt"]) == (None, None)
        assert bypass["upstream_ms"] > 0
        assert (passing["decision"], passing["route"], passing["record"]) == ("pass", None, None)
        assert (passing["method"], passing["status"], passing["bytes_in"], passing["bytes_out"]) == ("GET", 201, 0, 7)
        assert passing["ms"] >= passing["upstream_ms"] > 0


@pytest.mark.parametrize("fast_path", [True, False])
async def test_an_id_goes_up_and_back_and_is_another_one_in_each_request(tmp_path: Path, fast_path: bool) -> None:
    async with (
        Upstream(answering(CREATED)) as upstream,
        followed(upstream.url, tmp_path, fast_path=fast_path) as there,
    ):
        answers = [
            await there.client.request(method, "/", headers=headers)
            for method, headers in [
                ("GET", {}),
                ("POST", {}),
                ("POST", {"Idempotency-Key": "a"}),
                ("POST", {"Idempotency-Key": "a"}),
                ("GET", {"X-Request-Id": "own_1.2-3"}),
                ("GET", {"X-Request-Id": "x" * 128}),
                ("GET", {"X-Request-Id": "x" * 129}),
                ("GET", {"X-Request-Id": "a b"}),
                ("GET", {"X-Request-Id": '"},{"'}),
                ("GET", {"X-Request-Id": ""}),
                ("GET", {"Connection": "x-request-id", "X_Request_Id": "spoofed"}),
            ]
        ]
        assert all(len(answer.headers.get_list("x-request-id")) == 1 for answer in answers)
        answered = [answer.headers["x-request-id"] for answer in answers]
        assert len(set(answered)) == len(answered), "a replay has its own, and not the first one's"
        assert answered[4:6] == ["own_1.2-3", "x" * 128]
        assert all(re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]+", each) for each in answered[:4] + answered[6:])
        arrived = [request.value("x-request-id") for request in upstream.requests]
        assert arrived == answered[:3] + answered[4:], "the upstream gets the same, and one"
        assert not any(request.values("x_request_id") for request in upstream.requests)
        assert [line["request_id"] for line in await there.first(len(answers))] == answered


async def test_two_ids_are_none_and_neither_is_a_key_a_token_or_a_cookie(tmp_path: Path) -> None:
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n%b\r\n\r\n"
    sent = [
        b"x-request-id: one\r\nx-request-id: two",
        b'x-request-id: secret-1\r\nidempotency-key: "secret-1"',
        b"x-request-id: secret-2\r\nidempotency-key: secret-2",
        b"x-request-id: secret-3\r\nauthorization: Bearer secret-3",
        b"x-request-id: secret-4\r\ncookie: a=1; session=secret-4",
        b"x-request-id: secret-5\r\nx-payment-key: secret-5",
    ]
    rules = {"aliases": ["X-Payment-Key"]}
    async with (
        Upstream(answering(OK)) as upstream,
        followed(upstream.url, tmp_path, idempotency=rules) as there,
    ):
        for lines in sent:
            answer = await raw(there.client, head % lines)
            assert re.search(rb"\r\nx-request-id: [0-9a-f]{12}-[0-9a-f]+\r\n", answer), lines
        assert not re.search(r"secret|\bone\b|\btwo\b", json.dumps(await there.first(len(sent))))


async def test_a_client_that_leaves_has_a_line_with_status_499(tmp_path: Path) -> None:
    async with Upstream(hanging) as upstream, followed(upstream.url, tmp_path) as there:
        async with talking(there.client.base_url.port) as talk:
            talk.writer.write(b"GET /gone HTTP/1.1\r\nhost: a\r\n\r\n")
            await upstream.received(1)
            talk.reset()
        (line,) = await there.first(1)
        assert (line["status"], line["ended"], line["decision"], line["path"]) == (499, "client-left", "pass", "/gone")


async def test_a_client_that_leaves_its_attempt_has_a_line_once_that_is_over(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with (
        Upstream(answering(CREATED, after=go_on)) as upstream,
        followed(upstream.url, tmp_path) as there,
    ):
        async with talking(there.client.base_url.port) as talk:
            talk.writer.write(b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\nidempotency-key: k\r\n\r\n1")
            await upstream.received(1)
            talk.reset()
        go_on.set()
        (line,) = await there.first(1)
        assert (line["status"], line["ended"]) == (499, "client-left")
        assert (line["decision"], line["attempt"]) == ("first", 1)


async def test_a_client_that_leaves_its_upload_is_not_said_to_have_passed(tmp_path: Path) -> None:
    async with Upstream(answering(OK)) as upstream, followed(upstream.url, tmp_path) as there:
        async with talking(there.client.base_url.port) as talk:
            head = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\nidempotency-key: k\r\nexpect: 100-continue\r\n\r\n"
            talk.writer.write(head)
            await talk.reader.readuntil(b"100 Continue\r\n\r\n")
            talk.writer.write(b"123")
            talk.reset()
        (line,) = await there.first(1)
        assert (line["status"], line["ended"], line["decision"]) == (499, "client-left", None)
        assert line["bytes_in"] <= 3
        assert upstream.arrivals == 0


async def test_a_response_that_breaks_off_is_said_to(tmp_path: Path) -> None:
    begun = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 70_000
    async with Upstream(closing_after(begun)) as upstream, followed(upstream.url, tmp_path) as there:
        with pytest.raises(httpx.RemoteProtocolError):
            await there.client.get("/broken")
        (line,) = await there.first(1)
        assert (line["status"], line["ended"], line["decision"]) == (200, "broken-off", "upstream-failed")
        assert 0 < line["bytes_out"] <= 70_000


async def test_problems_of_what_passes_are_decisions(tmp_path: Path) -> None:
    async with followed(f"http://127.0.0.1:{free_port()}", tmp_path) as there:
        answer = await there.client.get("/")
        websocket = {"Upgrade": "websocket", "Connection": "Upgrade", "X-Request-Id": "w-1"}
        refused = await there.client.post("/", headers=websocket)
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert refused.json()["request_id"] == "w-1"
        lines = await there.first(2)
        assert [(line["decision"], line["status"]) for line in lines] == [
            ("upstream-unreachable", 502),
            ("upgrade-unsupported", 501),
        ]


async def test_a_tunnel_has_a_line_once_it_is_there(tmp_path: Path) -> None:
    async def echoing(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING)
        while data := await peer.reader.read(65536):
            await peer.send(data)

    async with Upstream(echoing) as upstream, followed(upstream.url, tmp_path) as there:
        async with talking(there.client.base_url.port) as talk:
            talk.writer.write(HANDSHAKE)
            assert (await talk.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            (line,) = await there.first(1)
            assert (line["status"], line["ended"], line["decision"]) == (101, "whole", "pass")
            talk.writer.write(b"hello")
            assert await talk.reader.readexactly(5) == b"hello"
        assert upstream.requests[0].value("x-request-id") == line["request_id"]


async def test_what_the_gateway_answers_itself_is_an_operation(tmp_path: Path) -> None:
    async with followed(f"http://127.0.0.1:{free_port()}", tmp_path) as there:
        await there.client.get("/_oncegate/healthz")
        (line,) = await there.first(1)
        assert (line["decision"], line["path"], line["upstream_ms"]) == ("operations", "/_oncegate/healthz", None)


async def test_a_message_that_is_no_request_has_a_line(tmp_path: Path) -> None:
    async with Upstream(answering(OK)) as upstream, followed(upstream.url, tmp_path) as there:
        await raw(there.client, b"GET / HTTP/1.1\r\nno colon\r\n\r\n")
        await raw(there.client, b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 100_000 + b"\r\n\r\n")
        lines = await there.first(2)
        assert [(line["decision"], line["status"], line["client"]) for line in lines] == [
            ("malformed", 400, "127.0.0.1"),
            ("malformed", 431, "127.0.0.1"),
        ]
        assert all(line["path"] is None and set(line) == MEMBERS for line in lines)


async def test_pipelined_requests_have_a_line_each(tmp_path: Path) -> None:
    async with Upstream(answering(OK)) as upstream, followed(upstream.url, tmp_path) as there:
        get = b"GET /%d HTTP/1.1\r\nhost: a\r\n%b\r\n"
        await raw(there.client, b"".join(get % (n, b"connection: close\r\n" * (n == 4)) for n in range(5)))
        assert [line["path"] for line in await there.first(5)] == [f"/{n}" for n in range(5)]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_bytes_are_counted_of_bodies_that_come_in_pieces(tmp_path: Path, method: str) -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(5):
            await peer.send(b"5\r\nabcde\r\n")
            await asyncio.sleep(0.01)
        await peer.send(b"0\r\n\r\n")
        await peer.hang()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * 1000
            await asyncio.sleep(0.01)

    async with Upstream(behave) as upstream, followed(upstream.url, tmp_path) as there:
        await there.client.request(method, "/", content=pieces(), headers={"Idempotency-Key": "k"})
        (line,) = await there.first(1)
        assert (line["bytes_in"], line["bytes_out"], line["ended"]) == (4000, 25, "whole")
        assert line["decision"] == ("first" if method == "POST" else "pass")
        assert line["upstream_ms"] >= 40


async def test_a_client_behind_a_trusted_proxy_is_who_that_names(tmp_path: Path) -> None:
    async with (
        Upstream(answering(OK)) as upstream,
        followed(upstream.url, tmp_path, trusted_proxies=["127.0.0.1", "10.0.0.0/8"]) as there,
    ):
        for forwarded in ("203.0.113.9, 198.51.100.7, 10.0.0.1", "10.0.0.1, 10.0.0.2", "198.51.100.7, nonsense", ""):
            await there.client.get("/", headers={"X-Forwarded-For": forwarded})
        clients = [line["client"] for line in await there.first(4)]
        assert clients == ["198.51.100.7", "10.0.0.1", "127.0.0.1", "127.0.0.1"]


async def test_nobody_else_is_believed_about_the_client(tmp_path: Path) -> None:
    async with Upstream(answering(OK)) as upstream, followed(upstream.url, tmp_path) as there:
        await there.client.get("/", headers={"X-Forwarded-For": "203.0.113.9"})
        assert (await there.first(1))[0]["client"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["replayed"], ["replayed"]),
        (["4xx"], ["key-reused"]),
        (["422", "pass"], ["key-reused", "pass"]),
        (["!operations", "!pass"], ["first", "replayed", "key-reused"]),
        (["2xx", "!replayed", "!operations"], ["first", "pass"]),
        ([">1h"], None),
        ([">1000s"], []),
        ([">0ms", "!422"], ["first", "replayed", "pass", "operations"]),
    ],
)
async def test_lines_are_chosen_by_decision_status_and_duration(
    tmp_path: Path, only: Sequence[str], expected: list[str] | None
) -> None:
    async def run() -> None:
        async with (
            Upstream(answering(OK)) as upstream,
            followed(upstream.url, tmp_path, access_log_only=only) as there,
        ):
            key = {"Idempotency-Key": "k"}
            await there.client.post("/", headers=key)
            await there.client.post("/", headers=key)
            await there.client.post("/", headers=key, content=b"else")
            await there.client.get("/")
            await there.client.get("/_oncegate/healthz")
        assert [line["decision"] for line in there.lines()] == (expected or [])

    if expected is None:
        with pytest.raises(ValueError, match=r"(?s)access_log_only.*has '>1h': there are decisions"):
            await run()
    else:
        await run()


COMBINED = re.compile(
    r'127\.0\.0\.1 - - \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\] "(?P<request>[^"]*)" (?P<status>\d+) (?P<size>\d+|-) '
    r'"(?P<referrer>[^"]*)" "(?P<agent>[^"]*)" time=(?P<time>\S+) (?P<rest>.*)\n'
)


async def test_the_combined_format_is_what_other_servers_write_and_the_rest_behind_it(tmp_path: Path) -> None:
    async with (
        Upstream(answering(CREATED)) as upstream,
        followed(upstream.url, tmp_path, access_log="combined") as there,
    ):
        headers = {
            "Idempotency-Key": "k",
            "X-Request-Id": "r-1",
            "Referer": "https://user:word@shop.example/basket?token=secret#secret",
            "User-Agent": 'a "quoted" \\ one',
        }
        await there.client.post("/pay%0Aments?secret=1", content=b"1", headers=headers)
        text = await until(lambda: (tmp_path / "access.log").read_text("ascii"))
        found = COMBINED.fullmatch(text)
        assert found is not None, text
        assert (found["request"], found["status"], found["size"]) == ("POST /pay%0Aments HTTP/1.1", "201", "7")
        assert found["referrer"] == "https://shop.example/basket"
        assert found["agent"] == r"a \x22quoted\x22 \x5C one"
        assert INSTANT.fullmatch(found["time"])
        rest = dict(each.split("=", 1) for each in found["rest"].split(" "))
        assert (rest["decision"], rest["attempt"], rest["request_id"], rest["ended"]) == ("first", "1", "r-1", "whole")


async def test_what_a_client_sends_stays_on_its_line_and_is_cut(tmp_path: Path) -> None:
    async with Upstream(answering(OK)) as upstream, followed(upstream.url, tmp_path) as there:
        await raw(
            there.client, b'GET /"},{"a\\":1%0a%0d HTTP/1.1\r\nhost: a\r\nconnection: close\r\nuser-agent: x\r\n\r\n'
        )
        await raw(there.client, b"GET /%b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n" % (b'"' * 50_000))
        quoted, long = await there.first(2)
        assert quoted["path"] == '/"},{"a\\":1%0a%0d'
        assert len(long["path"]) < 1010
        assert max(map(len, (tmp_path / "access.log").read_bytes().splitlines())) < 4096


async def test_reopened_it_goes_on_in_the_file_that_has_its_name_now(tmp_path: Path) -> None:
    async with Upstream(answering(OK)) as upstream, followed(upstream.url, tmp_path) as there:
        await there.client.get("/before")
        log = there.gateway.access_log
        assert log is not None
        (tmp_path / "access.log").rename(tmp_path / "access.log.1")
        log.lines.reopen()
        await there.client.get("/after")
        assert [line["path"] for line in await there.first(1)] == ["/after"]
        assert [json.loads(line)["path"] for line in (tmp_path / "access.log.1").read_text().splitlines()] == [
            "/before"
        ]


async def test_a_file_that_can_not_be_opened_leaves_the_former_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Upstream(answering(OK)) as upstream, followed(upstream.url, tmp_path) as there:
        log = there.gateway.access_log
        assert log is not None
        (tmp_path / "access.log").rename(tmp_path / "kept")
        (tmp_path / "access.log").mkdir()
        with pytest.raises(ConfigurationError, match=r"^access_log_file: can't be opened: Is a directory$"):
            log.lines.prepare(None)
        log.lines.reopen()
        await there.client.get("/still")
        await until(lambda: "/still" in (tmp_path / "kept").read_text())
        assert "the access log is not opened anew: Is a directory" in caplog.text


async def test_without_it_ids_pass_as_they_came(tmp_path: Path) -> None:
    """What is not followed needs no id; a stored response has none that is another request's."""
    async with Upstream(answering(CREATED)) as upstream, served(upstream.url) as (client, _):
        headers = {"Idempotency-Key": "k", "X-Request-Id": "as it came"}
        first = await client.post("/", headers=headers)
        replay = await client.post("/", headers=headers)
        assert upstream.requests[0].value("x-request-id") == "as it came"
        assert first.headers["x-request-id"] == "the-upstream-s"
        assert replay.headers["idempotent-replayed"] == "true"
        assert "x-request-id" not in replay.headers
        await client.get("/")
        assert upstream.requests[1].values("x-request-id") == []


@pytest.mark.parametrize("send", ["own-1", None])
async def test_without_it_problems_have_ids_all_the_same(send: str | None) -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        own = {} if send is None else {"X-Request-Id": send}
        await client.post("/", headers={"Idempotency-Key": "k"})
        answer = await client.post("/", headers={"Idempotency-Key": "k", **own}, content=b"else")
        assert answer.status_code == 422
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert (answer.json()["request_id"] == "own-1") is (send is not None)
