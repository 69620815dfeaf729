"""An upstream closes an idle connection as a request goes out there: what is sent once more, and what must not be.

Rules of docs/contract.md: R9.8.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from oncegate.app.upstream.connection import UpstreamConnection
from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.http.asgi import SCOPE_EXTENSION, AttemptView
from oncegate.middleware.outcome.errors import OutcomeUnknown
from testing.asgi_client import Client
from testing.upstreams import OK, Behaviour, Peer, Upstream, answering
from tests.app.fast_path import gateway_at, keyed, request
from tests.app.forwarding import forwarding

pytestmark = pytest.mark.both_loops

IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")
OTHERS = ("POST", "PATCH", "LOCK", "get")


@pytest.fixture
def closes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something done once, right after an idle connection was found fit and before a request is written to it."""

    def when_found_fit(act: Callable[[], None]) -> None:
        acts = [act]

        def is_stale(connection: UpstreamConnection) -> bool:
            stale = found(connection)
            if not stale and acts:
                acts.pop()()
            return stale

        found = UpstreamConnection.is_stale
        monkeypatch.setattr(UpstreamConnection, "is_stale", is_stale)

    return when_found_fit


Closes = Callable[[Callable[[], None]], None]


def enforced(method: str) -> Client:
    return Client(method, extensions={SCOPE_EXTENSION: AttemptView(1, "r", None)})


@asynccontextmanager
async def after_one(*behaviours: Behaviour) -> AsyncIterator[tuple[Upstream, Forwarder]]:
    """An upstream that behaves so behind its first answer, and a forwarder with an idle connection to it."""
    async with forwarding(then(*behaviours), keepalive=600) as (upstream, forwarder):
        await Client().call(forwarder)
        assert forwarder.upstream.idle == 1
        yield upstream, forwarder


def then(*behaviours: Behaviour) -> list[Behaviour]:
    """Answers a request on the first connection and goes on there as the first of ``behaviours``; the others are for the next."""
    first, *others = behaviours

    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await first(peer)

    return [once, *others]


async def reset(peer: Peer) -> None:
    await peer.request()
    peer.reset()


async def close(peer: Peer) -> None:
    await peer.request()


async def begin(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 2")


async def close_in_silence(peer: Peer) -> None:
    """Does nothing more: the test closes."""
    await asyncio.Event().wait()


BREAKS = [reset, close]


# Where acting twice does no harm


@pytest.mark.interpreted
@pytest.mark.parametrize("method", IDEMPOTENT)
async def test_what_met_the_end_of_its_connection_is_sent_again(method: str, closes: Closes) -> None:
    async with after_one(close_in_silence, answering(OK)) as (upstream, forwarder):
        closes(upstream.peers[0].end_silently)
        client = await Client(method, headers=[(b"content-length", b"3")], pieces=[b"abc"]).call(forwarder)
        assert (client.status, client.done, upstream.arrivals, upstream.connections) == (200, True, 2, 2)
        assert upstream.requests[1].body == b"abc"


@pytest.mark.interpreted
@pytest.mark.parametrize("fast_path", [True, False], ids=["fast-path", "task"])
@pytest.mark.parametrize(
    ("data", "status"),
    [(request("GET"), b"200"), (request("POST"), b"502"), (keyed(), b"502")],
    ids=["GET", "POST", "keyed"],
)
async def test_the_gateway_s_client_does_not_notice(
    fast_path: bool, data: bytes, status: bytes, closes: Closes
) -> None:
    async with (
        Upstream(then(close_in_silence, answering(OK))) as upstream,
        gateway_at(upstream.url, fast_path=fast_path) as (talk, _, _),
    ):
        await talk.exchange(request("GET"))
        closes(upstream.peers[0].end_silently)
        assert (await talk.exchange(data)).startswith(b"HTTP/1.1 " + status)
        assert (upstream.arrivals, upstream.connections) == ((2, 2) if status == b"200" else (1, 1))


@pytest.mark.interpreted
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_of_what_met_the_end_nobody_knows_where_there_is_nobody_any_more(method: str, closes: Closes) -> None:
    async with after_one(close_in_silence) as (upstream, forwarder):

        def end() -> None:
            upstream.stop()
            upstream.peers[0].end_silently()

        closes(end)
        with pytest.raises(OutcomeUnknown):
            await Client(method).call(forwarder)


# Where it would


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("method", IDEMPOTENT)
async def test_an_idempotent_request_is_sent_again_once(method: str, broken: Behaviour) -> None:
    async with after_one(broken, answering(OK)) as (upstream, forwarder):
        assert (await Client(method).call(forwarder)).status == 200
        assert (upstream.arrivals, upstream.connections) == (3, 2)
    async with after_one(broken, broken) as (upstream, forwarder):
        with pytest.raises(OutcomeUnknown):
            await Client(method).call(forwarder)
        assert (upstream.arrivals, upstream.connections) == (3, 2)


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize(("method", "make"), [*((method, Client) for method in OTHERS), ("PUT", enforced)])
async def test_what_was_read_is_not_sent_again(method: str, make: Callable[[str], Client], broken: Behaviour) -> None:
    """Under enforcement no attempt is, whatever its method: who asks for a key doesn't want to rely on that."""
    async with after_one(broken, answering(OK)) as (upstream, forwarder):
        with pytest.raises(OutcomeUnknown):
            await make(method).call(forwarder)
        assert (upstream.arrivals, upstream.connections) == (2, 1)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_nothing_is_sent_again_once_a_response_has_begun(method: str) -> None:
    async with after_one(begin, answering(OK)) as (upstream, forwarder):
        with pytest.raises(OutcomeUnknown):
            await Client(method).call(forwarder)
        assert (upstream.arrivals, upstream.connections) == (2, 1)


@pytest.mark.parametrize("broken", BREAKS)
async def test_nothing_is_sent_again_from_a_new_connection(broken: Behaviour) -> None:
    async with forwarding(broken) as (upstream, forwarder):
        with pytest.raises(OutcomeUnknown):
            await Client().call(forwarder)
        assert upstream.arrivals == 1


async def test_a_body_that_is_not_at_hand_any_more_is_not_sent_again() -> None:
    async with after_one(close, answering(OK)) as (upstream, forwarder):
        with pytest.raises(OutcomeUnknown):
            await Client("PUT", pieces=[b"a", b"b"]).call(forwarder)
        assert (upstream.arrivals, upstream.connections) == (2, 1)


@pytest.mark.interpreted
@pytest.mark.parametrize(("method", "arrivals"), [("POST", 2), ("GET", 3)])
async def test_an_upstream_that_has_closed_its_own_side_alone_may_read_on(
    method: str, arrivals: int, closes: Closes
) -> None:
    """Its FIN came before the request too, but no reset: what is there to be read may be acted upon."""

    async def reading(peer: Peer) -> None:
        await peer.request()
        await peer.hang()

    async with after_one(reading, answering(OK)) as (upstream, forwarder):
        closes(upstream.peers[0].writer.write_eof)
        client = Client(method)
        if method == "GET":
            assert (await client.call(forwarder)).status == 200
        else:
            with pytest.raises(OutcomeUnknown):
                await client.call(forwarder)
        await upstream.received(arrivals)
        await forwarder.close()
        await upstream.gone()
        assert upstream.arrivals == arrivals


@pytest.mark.interpreted
@pytest.mark.parametrize(("method", "make"), [("POST", Client), ("POST", enforced), ("PUT", enforced)])
async def test_what_was_read_after_the_upstream_s_end_is_not_sent_again(
    method: str, make: Callable[[str], Client], closes: Closes
) -> None:
    """Its FIN came before the request, and a reset comes after it: in between it has read the request, perhaps acted upon it."""
    async with after_one(reset, answering(OK)) as (upstream, forwarder):
        closes(upstream.peers[0].writer.write_eof)
        with pytest.raises(OutcomeUnknown):
            await make(method).call(forwarder)
        assert upstream.connections == 1
