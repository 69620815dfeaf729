"""The gateway around the middleware: what passes through and fails, upgrades, the start, and what a connection may send.

Rules of docs/contract.md: R4.9, R4.10, R4.21, R9.2, R9.5, R9.7, R9.14.
"""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from oncegate.app.factory import create_gateway
from oncegate.app.gateway.lifespan import StartRefused
from oncegate.app.server import connection as inbound
from oncegate.app.server import connection as server_connection
from oncegate.app.server import parser as inbound_parser
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.upstream import outgoing
from oncegate.cache.errors import CacheUnavailable, CacheUnsupported
from oncegate.cache.memory.store import MemoryCache
from oncegate.middleware.rules import policy
from testing.served import connected, raw, served
from testing.servers import RedisServer, free_port
from testing.upstreams import OK, PATIENCE, Peer, Upstream, answering, answering_once, closing_after

KEY = {"Idempotency-Key": "a"}


def assert_problem(answer: httpx.Response, status: int, code: str, *, retryable: bool) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert "date" in answer.headers
    problem = answer.json()
    assert (problem["code"], problem["status"], problem["retryable"]) == (code, status, retryable)


async def test_passing_through_without_an_upstream_is_a_problem() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        for method in ("GET", "POST", "DELETE"):
            assert_problem(await client.request(method, "/"), 502, "upstream-unreachable", retryable=True)


@pytest.mark.parametrize(("method", "retryable"), [("GET", True), ("POST", False)])
async def test_a_broken_connection_is_a_problem(method: str, retryable: bool) -> None:
    async with Upstream(closing_after(b"")) as upstream, served(upstream.url) as (client, _):
        assert_problem(await client.request(method, "/"), 502, "upstream-failed", retryable=retryable)


@pytest.mark.parametrize(("method", "retryable"), [("GET", True), ("POST", False)])
async def test_no_answer_in_time_is_a_problem(method: str, retryable: bool) -> None:
    rules = {"response_timeout": 0.1}
    async with Upstream(answering_once) as upstream, served(upstream.url, idempotency=rules) as (client, _):
        await connected(client)
        assert_problem(await client.request(method, "/"), 504, "upstream-timeout", retryable=retryable)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize(
    ("framing", "body"),
    [(b"content-length: 4", b"late"), (b"transfer-encoding: chunked", b"4\r\nlate\r\n0\r\n\r\n")],
    ids=["of a length", "in chunks"],
)
async def test_a_head_is_shown_where_its_body_is_late(
    method: str, reused: bool, framing: bytes, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that tells of a small body waits for it, but not longer than a second; that of a stream is shown at once."""
    go_on = asyncio.Event()

    async def late(peer: Peer) -> None:
        if reused:
            await peer.request()
            await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 201 Created\r\n%b\r\n\r\n" % framing)
        await go_on.wait()
        await peer.send(body)
        await peer.hang()

    if b"chunked" in framing:
        monkeypatch.setattr(outgoing, "WATCH_AFTER", 600.0)
        monkeypatch.setattr(policy, "_SOON", 600.0)
    lasting: dict[str, Any] = {"upstream_keepalive": 600, "idempotency": {"response_timeout": 600, "lease": 1800}}
    async with Upstream(late) as upstream, served(upstream.url, **lasting) as (client, _):
        if reused:
            assert (await client.request(method, "/", headers={"Idempotency-Key": "before"})).status_code == 200
        sending = asyncio.create_task(client.send(client.build_request(method, "/", headers=KEY), stream=True))
        shown, _ = await asyncio.wait([sending], timeout=PATIENCE / 2)
        go_on.set()
        answer = await sending
        assert (answer.status_code, await answer.aread()) == (201, b"late")
        assert upstream.connections == 1
    assert shown, "the head waited for its body"


async def test_a_response_that_breaks_off_breaks_off_for_the_client_too(caplog: pytest.LogCaptureFixture) -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    async with Upstream(closing_after(half)) as upstream, served(upstream.url) as (client, _):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")
    assert "upstream-failed" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(("settings", "via"), [({}, ["1.1 oncegate"]), ({"via": False}, [])])
async def test_a_setting_says_whether_via_is_added(settings: dict[str, Any], via: list[str]) -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url, **settings) as (client, _):
        for key in ({}, {"idempotency-key": "a"}, {"idempotency-key": "a"}):
            assert (await client.post("/", headers=key)).headers.get_list("via") == via
        assert [request.values("via") for request in upstream.requests] == [via] * 2


async def test_an_upgrade_under_enforcement_is_refused_and_not_forwarded() -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    routes = [{"path": "/*", "methods": ["GET"]}]
    async with Upstream(answering(OK)) as upstream, served(upstream.url, routes=routes) as (client, _):
        assert_problem(await client.get("/", headers=upgrade), 501, "upgrade-unsupported", retryable=False)
        assert upstream.arrivals == 0


@pytest.mark.parametrize("framing", [b"Content-Length: 33", b"Transfer-Encoding: chunked"])
async def test_the_body_of_an_upgrade_is_not_the_next_request(framing: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: %b\r\n%b\r\n\r\n"
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        for protocol in (b"websocket", b"h2c, websocket"):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(head % (protocol, framing))
            assert b" 501 " in await reader.readline()
            writer.write(smuggled)
            assert (await reader.read()).count(b"HTTP/1.1") == 0
            writer.close()
        assert upstream.arrivals == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_may_offer_http_2(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x" * 300_000)
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        for options in ((), ("--data-binary", f"@{body}"), ("-T", str(body), "-H", "Transfer-Encoding: chunked")):
            arguments = ["-H", "Idempotency-Key: k" + "".join(options)[:2], *options, f"{client.base_url}"]
            curl = await asyncio.create_subprocess_exec(
                "curl", "-sS", "--http2", "-w", "%{http_code}", *arguments, stdout=asyncio.subprocess.PIPE
            )
            got, _ = await asyncio.wait_for(curl.communicate(), PATIENCE)
            assert got.endswith(b"200"), options
        assert [len(request.body) for request in upstream.requests] == [0, 300_000, 300_000]
        assert not {"upgrade", "http2-settings"} & {name for request in upstream.requests for name, _ in request.fields}


async def test_an_unknown_method_is_refused_and_one_of_webdav_is_passed_on() -> None:
    async with Upstream(answering(OK, OK)) as upstream, served(upstream.url) as (client, _):
        for method, status in (("FOO", 501), ("VERSION-CONTROL", 501), ("PROPFIND", 200), ("QUERY", 200)):
            assert (await client.request(method, "/", content=b"body")).status_code == status
        assert [request.line for request in upstream.requests] == ["PROPFIND / HTTP/1.1", "QUERY / HTTP/1.1"]


async def test_an_offer_of_h2c_is_ignored() -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    async with Upstream(answering(OK, OK)) as upstream, served(upstream.url) as (client, _):
        assert (await client.get("/", headers=offer)).status_code == 200
        assert (await client.post("/", headers=offer | KEY, content=b"body")).status_code == 200
        assert (await client.post("/", headers=KEY, content=b"body")).headers["idempotent-replayed"] == "true"
        assert upstream.arrivals == 2


# -- the start --------------------------------------------------------------------------------------------------------


async def start(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(self: MemoryCache) -> list[str]:
        if error:
            raise error
        return ["this one evicts"]

    monkeypatch.setattr(MemoryCache, "check", check)
    await create_gateway(GatewaySettings(upstream="http://127.0.0.1:1")).lifespan.start()


async def test_a_cache_that_cannot_hold_the_guarantees_refuses_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartRefused, match=r"^cache: too old$"):
        await start(CacheUnsupported("too old"), monkeypatch)


async def test_a_cache_that_is_away_does_not(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    await start(CacheUnavailable("refused"), monkeypatch)
    assert "refused until then: refused" in caplog.text


async def test_advice_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    await start(None, monkeypatch)
    assert caplog.record_tuples[-1] == ("oncegate.gateway", logging.WARNING, "this one evicts")


async def test_a_redis_whose_user_may_not_touch_the_keys_is_no_outage_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RedisServer() as redis:
        redis.command("ACL", "SETUSER", "default", "resetkeys", "~other:*")
        gateway = create_gateway(GatewaySettings(upstream="http://127.0.0.1:1", cache=redis.url, namespace="shop"))
        await gateway.lifespan.start()
        await gateway.lifespan.stop()
    assert "the cache takes no records" in caplog.text
    assert "read and write the keys shop:* and {shop:*" in caplog.text
    assert "can't be reached" not in caplog.text


# -- what a connection may send ---------------------------------------------------------------------------------------


async def test_a_head_beyond_the_bound_is_refused() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        fits = b"GET /_oncegate/healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Large: %b\r\n\r\n"
        assert (await raw(client, fits % (b"x" * (inbound_parser.MAX_HEAD_BYTES - 100)))).startswith(b"HTTP/1.1 200")
        refused = await raw(client, fits % (b"x" * inbound_parser.MAX_HEAD_BYTES))
        assert refused.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Large: ",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
)
async def test_a_line_without_an_end_is_not_read_for_ever(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "LINGERING_BYTES", inbound_parser.MAX_HEAD_BYTES)
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(head)
        sent = 0
        try:
            async with asyncio.timeout(PATIENCE):
                while sent < 64 * inbound_parser.MAX_HEAD_BYTES:
                    writer.write(b"x" * 16384)
                    await writer.drain()
                    await asyncio.sleep(0)  # the kernel may take all of it at once: the gateway is to have its turns
                    sent += 16384
        except ConnectionError:
            pass
        assert reader.at_eof() or sent < 64 * inbound_parser.MAX_HEAD_BYTES
        writer.close()


async def test_a_head_that_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "HEAD_SECONDS", 0.1)
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        assert (await raw(client, b"GET / HTTP/1.1\r\nHost:")).startswith(b"HTTP/1.1 408 ")
        assert upstream.arrivals == 0


async def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "KEEP_ALIVE_SECONDS", 0.1)
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        assert await raw(client, b"") == b""


async def test_trailers_are_not_merged_into_the_headers() -> None:
    request = (
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nIdempotency-Attempt: 7\r\nX-Trailer: late\r\n\r\n"
    )
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        assert (await raw(client, request)).startswith(b"HTTP/1.1 200")
        assert upstream.requests[0].values("x-trailer") == []
        assert upstream.requests[0].values("idempotency-attempt") == ["1"]


@pytest.mark.parametrize("status", [b"304 Not Modified\r\ncontent-length: 5", b"204 No Content"])
async def test_a_response_without_a_body(status: bytes) -> None:
    answer = b"HTTP/1.1 %b\r\netag: a\r\n\r\n" % status
    async with Upstream(answering(answer, answer)) as upstream, served(upstream.url) as (client, _):
        for _ in range(2):
            passed = await client.get("/")
            assert (passed.status_code, passed.headers["etag"]) == (int(status[:3]), "a")


async def test_an_old_client_gets_no_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
    async with Upstream(closing_after(chunked)) as upstream, served(upstream.url) as (client, _):
        answer = await raw(client, b"GET / HTTP/1.0\r\nHost: a\r\n\r\n")
        assert b"chunked" not in answer
        assert answer.endswith(b"\r\n\r\nbody")
