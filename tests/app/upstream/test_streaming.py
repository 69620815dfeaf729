"""Bodies that don't arrive at once: back-pressure both ways, early answers, clients that leave.

Rules of docs/contract.md: R9.20.
"""

import asyncio
import tracemalloc

import pytest

from oncegate.app.upstream import outgoing
from oncegate.app.upstream.connection import HIGH_WATER
from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.http.asgi import SCOPE_EXTENSION, AttemptView
from oncegate.middleware.outcome.errors import NoAnswerInTime, OutcomeUnknown
from testing.asgi_client import Client
from testing.upstreams import OK, PATIENCE, Behaviour, Peer, Upstream, answering
from tests.app.forwarding import forwarding

pytestmark = pytest.mark.both_loops

LONG = 50 * 1024 * 1024
CHUNKED = (b"transfer-encoding", b"chunked")


def post(*pieces: bytes | asyncio.Event | None, length: int | None = None) -> Client:
    framing = CHUNKED if length is None else (b"content-length", b"%d" % length)
    return Client("POST", headers=[framing], pieces=pieces)


# Uploads


@pytest.mark.parametrize("length", [None, 9])
async def test_an_upload_in_pieces_arrives_whole(length: int | None) -> None:
    async with forwarding(answering(OK), keepalive=600) as (upstream, forwarder):
        for _ in range(2):
            client = await post(b"abc", b"", b"\0\r\n", b"xyz", b"", length=length).call(forwarder)
            assert client.body == b"ok"
        assert [request.body for request in upstream.requests] == [b"abc\0\r\nxyz"] * 2
        assert upstream.connections == 1
        request = upstream.requests[0]
        assert request.value("transfer-encoding") == ("chunked" if length is None else None)
        assert request.value("content-length") == (None if length is None else "9")


async def test_the_first_piece_goes_out_before_the_second_has_come() -> None:
    async def reading(peer: Peer) -> None:
        await peer.reader.readuntil(b"3\r\nabc\r\n")
        second.set()
        await peer.reader.readuntil(b"0\r\n\r\n")
        await peer.send(OK)
        await peer.hang()

    second = asyncio.Event()
    async with forwarding(reading) as (_, forwarder):
        assert (await asyncio.wait_for(post(b"abc", second, b"def").call(forwarder), PATIENCE)).done


async def test_a_whole_body_that_came_in_chunks_goes_out_with_a_length() -> None:
    async with forwarding(answering(OK)) as (upstream, forwarder):
        await post(b"abc").call(forwarder)
        assert upstream.requests[0].values("content-length") == ["3"]
        assert upstream.requests[0].values("transfer-encoding") == []


class Endless:
    """A client that always has another 64 KiB of its body, and counts how much was asked for."""

    def __init__(self, client: Client, limit: int) -> None:
        self.taken, self._limit, self._client = 0, limit, client
        client.receive = self.receive  # type: ignore[method-assign]  # the test stands in the way

    async def receive(self) -> dict[str, object]:
        if self.taken >= self._limit:
            await self._client.left.wait()
            return {"type": "http.disconnect"}
        self.taken += 65536
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(65536), "more_body": self.taken < self._limit}


async def test_an_upstream_that_reads_slowly_slows_the_client_down() -> None:
    async def slow(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        paused.set()
        await go_on.wait()
        await peer.reader.readexactly(LONG)
        await peer.send(OK)
        await peer.hang()

    paused, go_on = asyncio.Event(), asyncio.Event()
    async with Upstream(slow) as upstream:
        forwarder, client = Forwarder(upstream.url), post(length=LONG)
        endless = Endless(client, LONG)
        task = asyncio.create_task(client.call(forwarder))
        await paused.wait()
        last = -1
        while last != endless.taken:  # until nothing more is taken
            last = endless.taken
            await asyncio.sleep(0.1)
        assert last < LONG / 4  # what sockets and one buffer hold
        go_on.set()
        await asyncio.wait_for(task, PATIENCE)
        assert (client.body, endless.taken) == (b"ok", LONG)
        await forwarder.close()


async def test_an_upstream_that_takes_no_more_of_a_body_is_given_up() -> None:
    async def stuck(peer: Peer) -> None:
        await asyncio.Event().wait()

    async with Upstream(stuck) as upstream:
        client = post(length=LONG)
        Endless(client, LONG)
        with pytest.raises(NoAnswerInTime):
            await asyncio.wait_for(client.call(Forwarder(upstream.url, response_timeout=0.2)), PATIENCE)


async def test_a_client_that_leaves_in_the_middle_of_its_upload_leaves_half_a_request() -> None:
    async with forwarding(answering(OK)) as (upstream, forwarder):
        client = await post(b"abc", None).call(forwarder)
        await upstream.gone()
        assert (client.messages, upstream.arrivals, forwarder.upstream.idle) == ([], 0, 0)


async def test_a_client_that_left_before_its_body_came_is_not_forwarded() -> None:
    async with Upstream(answering(OK)) as upstream:
        await post(None).call(Forwarder(upstream.url))
        assert upstream.connections == 0


@pytest.mark.parametrize("pieces", [(b"abc", b"def"), (b"abc", b"d"), (b"abc", b"d", b"efg")])
async def test_a_body_that_is_not_as_long_as_announced_is_not_completed(pieces: tuple[bytes, ...]) -> None:
    async with Upstream(answering(OK)) as upstream:
        with pytest.raises(OutcomeUnknown, match="Content-Length"):
            await post(*pieces, length=5).call(Forwarder(upstream.url))
        await upstream.gone()
        assert upstream.arrivals == 0


@pytest.mark.parametrize("good", [1, 2])
async def test_a_receive_that_raises_ends_the_request(good: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "WATCH_AFTER", 0.01)
    client = post(*[b"abc"] * good)
    real, calls = client.receive, 0

    async def failing() -> dict[str, object]:
        nonlocal calls
        calls += 1
        if calls > good:
            raise RuntimeError("the server's own fault")
        return await real()

    client.receive = failing  # type: ignore[method-assign]  # the test stands in the way
    async with Upstream(silent) as upstream:
        with pytest.raises(OutcomeUnknown) as raised:  # the upstream has the request: a mere failure would be retried
            await asyncio.wait_for(client.call(Forwarder(upstream.url)), PATIENCE)
        assert "(RuntimeError)" in str(raised.value)
        await upstream.gone()


# Answers before the end of the upload


def early(answer: bytes) -> Behaviour:
    async def behave(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(answer)
        await peer.hang()

    return behave


TOO_LARGE = b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig"


async def test_an_early_answer_is_delivered_and_ends_the_upload_and_the_connection() -> None:
    async with Upstream(early(TOO_LARGE)) as upstream:
        forwarder, never = Forwarder(upstream.url), asyncio.Event()
        client = await asyncio.wait_for(post(b"abc", never, b"def", length=6).call(forwarder), PATIENCE)
        assert (client.status, client.body, client.done) == (413, b"big", True)
        assert forwarder.upstream.idle == 0
        await upstream.gone()


async def test_an_early_refusal_that_is_still_coming_ends_the_upload() -> None:
    async def refusing(peer: Peer) -> None:
        await peer.reader.readuntil(b"abc")
        await peer.send(TOO_LARGE[:-1])
        taken.append(await peer.reader.read(65536))

    taken: list[bytes] = []
    async with Upstream(refusing) as upstream:
        client = post(length=6)
        client.pieces = [b"abc", client.started, b"def"]
        task = asyncio.create_task(client.call(Forwarder(upstream.url, response_timeout=0.2)))
        await asyncio.wait_for(client.started.wait(), PATIENCE)
        for _ in range(20):  # time enough for an upload that goes on
            await asyncio.sleep(0.005)
        assert taken == []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_early_answer_arrives_though_the_upstream_reads_no_more() -> None:
    async def deaf(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(TOO_LARGE)
        await done.wait()

    done = asyncio.Event()
    async with Upstream(deaf) as upstream:
        client = post(length=LONG)
        Endless(client, LONG)
        await asyncio.wait_for(client.call(Forwarder(upstream.url)), PATIENCE)
        assert (client.status, client.body) == (413, b"big")
        done.set()


async def test_an_answer_that_accepts_goes_along_with_the_upload() -> None:
    async def echo(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n")
        for _ in range(2):
            await peer.send(await peer.reader.readexactly(3))
        await peer.hang()

    async with Upstream(echo) as upstream:
        forwarder, client = Forwarder(upstream.url, keepalive=600), post(length=6)
        client.pieces = [b"abc", client.started, b"def"]
        await asyncio.wait_for(client.call(forwarder), PATIENCE)
        assert (client.body, client.done, forwarder.upstream.idle) == (b"abcdef", True, 1)
        await forwarder.close()


# Downloads


def flooding(size: int) -> Behaviour:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            await peer.send(bytes(65536))
            sent[0] += 65536

    sent = [0]
    behave.sent = sent  # type: ignore[attr-defined]  # the test's own
    return behave


async def test_a_client_that_does_not_read_holds_the_upstream_back() -> None:
    behave = flooding(LONG)
    async with Upstream(behave) as upstream:
        forwarder, client = Forwarder(upstream.url), Client()
        sizes = []
        real_send = client.send

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.body":
                sizes.append(len(message["body"]))  # type: ignore[arg-type]  # options of the test's own
                message = {**message, "body": b""}
            await real_send(message)

        client.send = send  # type: ignore[method-assign]  # the test stands in the way
        client.reads.clear()
        tracemalloc.start()
        try:
            task = asyncio.create_task(client.call(forwarder))
            await upstream.received(1)
            last = -1
            while last != behave.sent[0]:  # type: ignore[attr-defined]  # the test's own
                last = behave.sent[0]  # type: ignore[attr-defined]  # the test's own
                await asyncio.sleep(0.1)
            assert last < LONG / 4  # the sockets' buffers, and ours
            assert tracemalloc.get_traced_memory()[0] < 2 * 1024 * 1024
        finally:
            tracemalloc.stop()
        client.reads.set()
        await asyncio.wait_for(task, PATIENCE)
        assert (sum(sizes), client.done) == (LONG, True)
        assert max(sizes) <= HIGH_WATER + 256 * 1024  # what waits, and the one read that was under way
        await forwarder.close()


async def test_each_piece_of_a_stream_is_passed_on_when_it_comes() -> None:
    async def events(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(3):
            await peer.send(b"2\r\nab\r\n")
            await go_on.acquire()
        await peer.send(b"0\r\n\r\n")
        await peer.hang()

    go_on = asyncio.Semaphore(0)
    async with Upstream(events) as upstream:
        forwarder, client = Forwarder(upstream.url, keepalive=600), Client()
        real_send = client.send

        async def send(message: dict[str, object]) -> None:
            await real_send(message)
            if message.get("body") == b"ab":
                go_on.release()

        client.send = send  # type: ignore[method-assign]  # the test stands in the way
        await asyncio.wait_for(client.call(forwarder), PATIENCE)
        assert (client.body, client.done, forwarder.upstream.idle) == (b"ababab", True, 1)
        await forwarder.close()


async def silent_stream(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
    await peer.hang()


async def busy_stream(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while not peer.writer.is_closing():
        await peer.send(b"abc")
        await asyncio.sleep(0.01)
    peer.gone.set()


async def silent(peer: Peer) -> None:
    await peer.request()
    await peer.hang()


@pytest.mark.parametrize("behave", [silent_stream, busy_stream, silent])
async def test_a_client_that_leaves_ends_what_the_upstream_does_for_it(
    behave: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "WATCH_AFTER", 0.05)
    async with Upstream(behave) as upstream:
        forwarder, client = Forwarder(upstream.url), Client()
        task = asyncio.create_task(client.call(forwarder))
        await upstream.received(1)
        client.left.set()
        await asyncio.wait_for(task, PATIENCE)
        assert not client.done
        await upstream.gone()
        assert forwarder.upstream.idle == 0


async def test_an_enforced_attempt_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "WATCH_AFTER", 0.0)

    async def slow(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.1)
        await peer.send(OK)

    async with Upstream(slow) as upstream:
        client = Client("POST", extensions={SCOPE_EXTENSION: AttemptView(1, "r", None)})
        client.left.set()
        assert (await client.call(Forwarder(upstream.url, keepalive=0))).body == b"ok"


async def test_nothing_is_left_behind_by_many_exchanges() -> None:
    before = asyncio.all_tasks()
    async with forwarding(answering(OK)) as (_, forwarder):
        for _ in range(20):
            await asyncio.gather(*(post(b"a", b"b").call(forwarder) for _ in range(5)), Client().call(forwarder))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
