"""What the forwarder sends to the upstream and gives back: one exchange at a time, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from oncegate.app.forward import Forwarder
from tests.asgi_client import Client
from tests.upstreams import OK, Behaviour, Request, Upstream, answering


@asynccontextmanager
async def forwarding(behave: Behaviour, **options: object) -> AsyncIterator[tuple[Forwarder, Upstream]]:
    base = str(options.pop("base", ""))
    async with Upstream(behave) as upstream:
        forwarder = Forwarder(upstream.url + base, **options)  # type: ignore[arg-type]
        try:
            yield forwarder, upstream
        finally:
            await forwarder.close()


async def sent(client: Client, **options: object) -> Request:
    """The request that reaches the upstream when ``client`` calls."""
    async with forwarding(answering(OK), **options) as (forwarder, upstream):
        await client.call(forwarder)
        assert client.status == 200, client.body
        return upstream.requests[0]


async def answered(answer: bytes, method: str = "GET") -> Client:
    """What the client gets when the upstream answers so."""
    async with forwarding(answering(answer)) as (forwarder, _):
        return await Client(method).call(forwarder)


# Towards the upstream


async def test_path_and_query_go_out_exactly_as_they_came() -> None:
    request = await sent(Client(path=b"//a%2Fb/../%7e;x=\xc3\xa9", query_string=b"q=%20&&a=b+c?d"))
    assert request.line == "GET //a%2Fb/../%7e;x=\xc3\xa9?q=%20&&a=b+c?d HTTP/1.1"


async def test_the_base_path_goes_before_the_path() -> None:
    assert (await sent(Client(path=b"/v1/x"), base="/api/")).line == "GET /api/v1/x HTTP/1.1"


async def test_options_asterisk_is_forwarded_without_a_base() -> None:
    assert (await sent(Client("OPTIONS", b"*"), base="/api")).line == "OPTIONS * HTTP/1.1"


@pytest.mark.parametrize(
    "path", [b"/a b", b"/a\r\nX: y", b"/a\0", b"/a?b", b"/a#b", b"/\x7f", b"a", b"http://x/", b"*"]
)
async def test_a_target_that_does_not_fit_a_request_line_is_refused(path: bytes) -> None:
    async with forwarding(answering(OK)) as (forwarder, upstream):
        client = await Client(path=path).call(forwarder)
        assert (client.status, upstream.connections) == (400, 0)


async def test_a_whole_body_goes_out_with_its_length() -> None:
    request = await sent(Client("POST", headers=[(b"content-length", b"5")], pieces=[b"a\0\r\nb"]))
    assert (request.body, request.values("content-length")) == (b"a\0\r\nb", ["5"])


async def test_host_is_preserved_and_repeated_fields_keep_their_order() -> None:
    request = await sent(Client(headers=[(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3"), (b"cookie", b"")]))
    assert request.fields[:5] == [("host", "api.example"), ("x-a", "1"), ("x-b", "2"), ("x-a", "3"), ("cookie", "")]


# Back to the client


async def test_a_small_response_comes_back_as_two_messages() -> None:
    client = await answered(b"HTTP/1.1 201 Created\r\ncontent-length: 4\r\nX-A: 1\r\nX-A: 2\r\n\r\n\x00\xff\r\n")
    assert (client.status, client.body, client.done, len(client.messages)) == (201, b"\x00\xff\r\n", True, 2)
    assert client.values(b"x-a") == [b"1", b"2"]


async def test_a_connection_is_used_again() -> None:
    async with forwarding(answering(OK)) as (forwarder, upstream):
        for _ in range(5):
            assert (await Client().call(forwarder)).body == b"ok"
        assert (upstream.arrivals, upstream.connections) == (5, 1)
