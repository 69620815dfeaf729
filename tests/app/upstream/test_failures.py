"""What decides about money: was nothing sent, or did no answer come? And which connections may be used again.

Rules of docs/contract.md: R9.19.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
import uvloop

from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.http.asgi import SCOPE_EXTENSION, AttemptView
from oncegate.middleware.outcome.errors import NoAnswerInTime, NotProcessed, OutcomeUnknown
from testing.asgi_client import Client
from testing.servers import free_port
from testing.upstreams import OK, PATIENCE, Peer, Upstream, answering, closing_after, hanging, resetting_after
from testing.waiting import until
from tests.app.forwarding import forwarding

pytestmark = pytest.mark.both_loops


def enforced(confirm: Callable[[], Awaitable[None]] | None = None, method: str = "POST") -> Client:
    return Client(method, extensions={SCOPE_EXTENSION: AttemptView(1, "r", confirm)})


async def reason(forwarder: Forwarder, kind: type[Exception]) -> str:
    """The one line that the error of a plain request has; nothing must have reached its client."""
    client = Client()
    with pytest.raises(kind) as raised:
        await client.call(forwarder)
    assert client.messages == []
    assert "\n" not in str(raised.value)
    return str(raised.value)


# Nothing was sent


async def test_a_refused_connection_means_that_nothing_was_sent() -> None:
    port = free_port()
    assert f"http://127.0.0.1:{port}" in await reason(Forwarder(f"http://127.0.0.1:{port}"), NotProcessed)


async def test_a_missing_socket_means_that_nothing_was_sent(tmp_path: Path) -> None:
    await reason(Forwarder(f"unix://{tmp_path}/none.sock"), NotProcessed)


async def test_a_name_without_an_address_means_that_nothing_was_sent() -> None:
    await reason(Forwarder("http://no-such-host.invalid"), NotProcessed)


async def test_a_connection_that_does_not_open_in_time_means_that_nothing_was_sent() -> None:
    with socket.socket() as full:  # its queue takes one connection, and nobody accepts: the next SYNs are dropped
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            text = await reason(Forwarder(f"http://127.0.0.1:{port}", connect_timeout=0.2), NotProcessed)
            assert "within 0.2 s" in text


async def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Upstream(answering(OK)) as upstream:
        loop = asyncio.get_running_loop()

        async def two_addresses(host: str, port: int, **_: object) -> list[object]:
            assert host == "twofold.example"
            return [(2, 1, 6, "", ("127.0.0.2", port)), (2, 1, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(loop, "getaddrinfo", two_addresses)
        forwarder = Forwarder(f"http://twofold.example:{upstream.port}")
        assert (await Client().call(forwarder)).body == b"ok"
        await forwarder.close()


async def test_a_probe_says_whether_a_connection_can_be_opened() -> None:
    async with forwarding(answering(OK)) as (_, forwarder):
        await forwarder.probe()
    with pytest.raises(NotProcessed):
        await forwarder.probe()


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def serving(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_a_tls_upstream_is_verified_and_its_connection_used_again(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with Upstream(answering(OK), tls=serving(authority, "localhost")) as upstream:
        forwarder = Forwarder(upstream.url, ca_file=str(tmp_path / "ca.pem"), keepalive=600)
        for _ in range(3):
            assert (await Client().call(forwarder)).body == b"ok"
        assert upstream.connections == 1
        await forwarder.close()


@pytest.mark.parametrize("alert", [True, False])
async def test_over_tls_only_its_alert_ends_a_body_without_a_length(
    alert: bool, authority: trustme.CA, tmp_path: Path
) -> None:
    async def until_the_end(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
        if not alert:  # anybody between us can send a FIN; only the upstream can sign the end
            peer.end_silently()

    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with Upstream(until_the_end, tls=serving(authority, "localhost")) as upstream:
        client = Client()
        call = client.call(Forwarder(upstream.url, ca_file=str(tmp_path / "ca.pem")))
        if alert:
            await call
        elif not isinstance(asyncio.get_running_loop(), uvloop.Loop):
            await call  # asyncio's own TLS does not tell them apart; the gateway runs on uvloop
            return
        else:
            with pytest.raises(OutcomeUnknown):
                await call
        assert (client.body, client.done) == (b"abc", alert)


async def test_another_authority_means_that_nothing_was_sent(authority: trustme.CA, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    async with Upstream(answering(OK), tls=serving(authority, "localhost")) as upstream:
        text = await reason(Forwarder(upstream.url, ca_file=str(tmp_path / "other.pem")), NotProcessed)
        assert "certificate verify failed" in text
        assert upstream.arrivals == 0


async def test_another_name_means_that_nothing_was_sent(authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with Upstream(answering(OK), tls=serving(authority, "other.example")) as upstream:
        await reason(Forwarder(upstream.url, ca_file=str(tmp_path / "ca.pem")), NotProcessed)


async def test_an_upstream_without_tls_means_that_nothing_was_sent() -> None:
    async with Upstream(closing_after(OK)) as upstream:
        await reason(Forwarder(f"https://127.0.0.1:{upstream.port}", connect_timeout=1), NotProcessed)


# It was sent, and no answer came


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-le"])
async def test_a_reset_before_the_head_is_an_unknown_outcome(answer: bytes) -> None:
    async with Upstream(resetting_after(answer)) as upstream:
        text = await reason(Forwarder(upstream.url), OutcomeUnknown)
        assert upstream.url in text
        assert upstream.arrivals == 1


async def test_a_reset_in_the_middle_of_a_body_raises_after_what_had_arrived() -> None:
    async with Upstream(resetting_after(b"HTTP/1.1 200 OK\r\n\r\nabc")) as upstream:
        client = Client()
        with pytest.raises(OutcomeUnknown):
            await client.call(Forwarder(upstream.url))
        assert (client.body, client.done) == (b"abc", False)


async def test_a_close_without_an_answer_is_not_sent_again() -> None:
    async with Upstream(closing_after(b"")) as upstream:
        await reason(Forwarder(upstream.url), OutcomeUnknown)
        assert (upstream.arrivals, upstream.connections) == (1, 1)


async def test_no_head_in_time_ends_the_upstreams_connection() -> None:
    async with Upstream(hanging) as upstream:
        assert "0.1 s" in await reason(Forwarder(upstream.url, response_timeout=0.1), NoAnswerInTime)
        await upstream.gone()


async def test_a_head_that_trickles_does_not_stretch_its_time() -> None:
    async def trickling(peer: Peer) -> None:
        await peer.request()
        while True:
            await peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            await asyncio.sleep(0.01)

    async with Upstream(trickling) as upstream:
        await asyncio.wait_for(reason(Forwarder(upstream.url, response_timeout=0.2), NoAnswerInTime), PATIENCE)


async def test_a_body_may_take_longer_than_its_head() -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")
        await asyncio.sleep(4.5)  # past the time for a head, which is ample on a machine that stands still for a while
        await peer.send(b"k")

    async with Upstream(slow) as upstream:
        assert (await Client().call(Forwarder(upstream.url, response_timeout=4, keepalive=0))).done


async def test_an_enforced_attempt_has_no_time_limit_here() -> None:
    async def slow(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.3)  # longer than the limit that is not to hold
        await peer.send(OK)

    async with Upstream(slow) as upstream:
        client = await enforced().call(Forwarder(upstream.url, response_timeout=0.1))
        assert client.body == b"ok"


@pytest.mark.parametrize("make", [Client, enforced], ids=["passing through", "enforced"])
async def test_cancelling_ends_the_upstreams_connection(make: Callable[[], Client]) -> None:
    async with forwarding(hanging) as (upstream, forwarder):
        task = asyncio.create_task(make().call(forwarder))
        await upstream.received(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream.gone()
        assert forwarder.upstream.idle == 0


async def test_cancelling_in_the_middle_of_a_body_ends_the_upstreams_connection() -> None:
    async def half(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
        await peer.hang()

    async with Upstream(half) as upstream:
        forwarder, client = Forwarder(upstream.url), enforced()
        task = asyncio.create_task(client.call(forwarder))
        await asyncio.wait_for(client.started.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream.gone()


# Right before the first byte


async def test_an_attempt_is_confirmed_once_when_the_connection_stands_and_nothing_was_sent() -> None:
    async with Upstream(answering(OK)) as upstream:
        seen = []

        async def confirm() -> None:
            await until(lambda: upstream.connections == 1)
            await asyncio.sleep(0.05)
            seen.append((upstream.connections, list(upstream.heads)))

        forwarder = Forwarder(upstream.url)
        assert (await enforced(confirm).call(forwarder)).body == b"ok"
        assert seen == [(1, [])]
        await forwarder.close()


async def test_an_attempt_that_is_no_longer_ours_sends_nothing_and_keeps_the_connection() -> None:
    async def confirm() -> None:
        raise NotProcessed("taken over")

    async with forwarding(answering(OK), keepalive=600) as (upstream, forwarder):
        with pytest.raises(NotProcessed, match="taken over"):
            await enforced(confirm).call(forwarder)
        assert upstream.heads == []
        assert (await enforced().call(forwarder)).body == b"ok"
        assert upstream.connections == 1


async def test_a_connection_that_goes_stale_while_confirming_costs_nothing() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await may_close.wait()

    may_close, confirmed = asyncio.Event(), 0
    async with forwarding([once, answering(OK)], keepalive=600) as (upstream, forwarder):
        await Client().call(forwarder)

        async def confirm() -> None:
            nonlocal confirmed
            confirmed += 1
            if confirmed == 1:
                may_close.set()
                await upstream.peers[0].writer.wait_closed()

        assert (await enforced(confirm).call(forwarder)).body == b"ok"
        assert (confirmed, upstream.connections) == (2, 2)
