"""What the forwarder sends to the upstream and gives back: one exchange at a time, over real sockets.

Rules of docs/contract.md: R9.1, R9.6, R9.7.
"""

import gzip
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from oncegate.app.upstream.forward import Forwarder
from testing.asgi_client import Client
from testing.upstreams import OK, Request, Upstream, answering, closing_after, in_pieces
from tests.app.forwarding import forwarding

pytestmark = pytest.mark.both_loops


async def sent(client: Client, base: str = "", **options: object) -> Request:
    """The request that reaches the upstream when ``client`` calls."""
    async with Upstream(answering(OK)) as upstream:
        forwarder = Forwarder(upstream.url + base, **options)  # type: ignore[arg-type]  # options of the test's own
        await client.call(forwarder)
        assert client.status == 200, client.body
        await forwarder.close()
        return upstream.requests[0]


async def answered(answer: bytes, method: str = "GET") -> Client:
    """What the client gets when the upstream answers so, and closes."""
    async with Upstream(closing_after(answer)) as upstream:
        return await Client(method).call(Forwarder(upstream.url))


# Towards the upstream


async def test_path_and_query_go_out_exactly_as_they_came() -> None:
    request = await sent(Client(path=b"//a%2Fb/../%7e;x=\xc3\xa9", query_string=b"q=%20&&a=b+c?d"))
    assert request.line == "GET //a%2Fb/../%7e;x=\xc3\xa9?q=%20&&a=b+c?d HTTP/1.1"


async def test_without_a_raw_path_the_decoded_one_is_quoted() -> None:
    assert (await sent(Client(raw_path=None, path=b"/"))).line == "GET / HTTP/1.1"
    client = Client()
    client.scope.update(path="/a b/é", raw_path=None)
    assert (await sent(client)).line == "GET /a%20b/%C3%A9 HTTP/1.1"


async def test_the_base_path_goes_before_the_path() -> None:
    assert (await sent(Client(path=b"/v1/x"), base="/api/")).line == "GET /api/v1/x HTTP/1.1"


async def test_options_asterisk_is_forwarded_without_a_base() -> None:
    assert (await sent(Client("OPTIONS", b"*"), base="/api")).line == "OPTIONS * HTTP/1.1"


async def test_a_whole_body_goes_out_with_its_length() -> None:
    request = await sent(Client("POST", headers=[(b"content-length", b"5")], pieces=[b"a\0\r\nb"]))
    assert (request.body, request.values("content-length")) == (b"a\0\r\nb", ["5"])


async def test_a_large_whole_body_arrives_whole() -> None:
    body = bytes(range(256)) * 4096
    request = await sent(Client("POST", headers=[(b"content-length", b"%d" % len(body))], pieces=[body]))
    assert request.body == body


async def test_a_request_without_a_body_announces_none() -> None:
    request = await sent(Client("DELETE"))
    assert request.values("content-length") == request.values("transfer-encoding") == []


async def test_an_announced_empty_body_is_announced() -> None:
    assert (await sent(Client("POST", headers=[(b"content-length", b"0")]))).values("content-length") == ["0"]


async def test_host_is_preserved_and_repeated_fields_keep_their_order() -> None:
    request = await sent(Client(headers=[(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3"), (b"cookie", b"")]))
    assert request.fields[:5] == [("host", "api.example"), ("x-a", "1"), ("x-b", "2"), ("x-a", "3"), ("cookie", "")]


async def test_a_missing_host_is_the_upstreams() -> None:
    async with Upstream(answering(OK)) as upstream:
        client = Client()
        client.scope["headers"] = []
        forwarder = Forwarder(upstream.url)
        await client.call(forwarder)
        assert upstream.requests[0].value("host") == f"127.0.0.1:{upstream.port}"
        await forwarder.close()


async def test_hop_by_hop_fields_stay_here() -> None:
    names = [
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
        "proxy-authorization",
        "expect",
        "http2-settings",
    ]
    headers = [(name.encode(), b"x") for name in names] + [(b"connection", b"upgrade, X-Mine"), (b"x-mine", b"1")]
    request = await sent(Client(headers=[*headers, (b"x-yours", b"2")]))
    assert [name for name, _ in request.fields if name in [*names, "connection", "x-mine"]] == []
    assert request.value("x-yours") == "2"


async def test_connection_cannot_take_away_what_is_meant_for_the_upstream() -> None:
    named = [b"authorization", b"idempotency-key", b"content-type", b"x-order-id"]
    headers = [(b"connection", b"Close, " + b",".join(named)), *((name, b"v") for name in named)]
    request = await sent(Client(headers=headers), end_to_end=["X-Order-Id"])
    assert [request.value(name.decode()) for name in named] == ["v"] * 4


async def test_no_other_spelling_of_a_field_that_was_judged_passes() -> None:
    names = [b"content_length", b"transfer_encoding", b"transfer-encoding", b"idempotency_key", b"idempotency_attempt"]
    headers = [(name, b"chunked") for name in names] + [(b"idempotency-key", b"k"), (b"my_field", b"1")]
    request = await sent(Client("POST", headers=headers, pieces=[b"ab"]))
    assert [name for name, _ in request.fields if name.encode() in names] == []
    assert (request.value("idempotency-key"), request.value("my_field")) == ("k", "1")


async def test_no_other_spelling_of_a_field_that_the_configuration_reads_passes() -> None:
    """Else a client whom oncegate takes for nobody in particular is somebody to a CGI or WSGI upstream."""
    headers = [(b"x_api_key", b"alice"), (b"x-api_key", b"alice"), (b"x-api-key", b"bob"), (b"x_other", b"1")]
    request = await sent(Client("POST", headers=headers), end_to_end=["X-Api-Key"])
    assert [(name, value) for name, value in request.fields if "api" in name] == [("x-api-key", "bob")]
    assert request.value("x_other") == "1"


async def test_via_can_be_left_out_both_ways() -> None:
    given = [(b"via", b"1.0 other")]
    behaviour = answering(OK, OK.replace(b"\r\n\r\n", b"\r\nvia: 1.0 theirs\r\n\r\n"))
    async with forwarding(behaviour, via=False) as (upstream, forwarder):
        answers = [await Client(headers=headers).call(forwarder) for headers in ([], given)]
        assert [answer.values(b"via") for answer in answers] == [[], [b"1.0 theirs"]]
        assert [request.values("via") for request in upstream.requests] == [[], ["1.0 other"]]


async def test_via_is_added_behind_what_was_there() -> None:
    assert (await sent(Client(headers=[(b"via", b"1.0 other")]))).values("via") == ["1.0 other", "1.1 oncegate"]


# Who asked


FORGED = [
    (b"x-forwarded-for", b"203.0.113.9"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"shop.example"),
    (b"x_forwarded-for", b"203.0.113.9"),
    (b"x-forwarded-port", b"1"),
    (b"forwarded", b"for=203.0.113.9"),
    (b"x-real-ip", b"203.0.113.9"),
]


async def test_what_an_untrusted_peer_says_of_its_client_is_replaced() -> None:
    request = await sent(Client(headers=FORGED), trusted_proxies=["10.0.0.0/8", "192.0.2.8"])
    assert request.value("x-forwarded-for") == "192.0.2.7"
    assert request.value("x-forwarded-proto") == "http"
    assert request.value("x-forwarded-host") == "api.example"
    assert b"203.0.113.9" not in request.raw
    assert request.value("x-forwarded-port") is None


PARTS = ["For", "User", "Email", "Groups", "Preferred-Username", "Client-Cert", "Tls-Client-Cert-Info", "Uri", "Method"]
PARTS += ["Access-Token", "Path", "Original-Host", "Anything-That-Comes", ""]


@pytest.mark.parametrize("spelling", ["x-forwarded-", "x_forwarded_", "x-forwarded_", "x_forwarded-", "x.forwarded."])
async def test_nothing_that_an_untrusted_peer_says_under_such_a_name_passes(spelling: str) -> None:
    names = [(spelling + part.lower()).rstrip("-_.").encode() for part in PARTS]
    headers = [*((name, b"forged") for name in names), (b"forwarded", b"for=forged"), (b"x_real-ip", b"forged")]
    kept = [(b"x-forward", b"1"), (b"not-x-forwarded-for", b"2"), (b"link", b"forwarded"), (b"x-forwardedly", b"3")]
    request = await sent(Client(headers=headers + kept))
    assert b"forged" not in request.raw
    assert [
        (name.encode(), value.encode()) for name, value in request.fields if (name.encode(), value.encode()) in kept
    ] == kept
    assert [name for name, _ in request.fields if "forwarded-" in name and not name.startswith("not")] == [
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
    ]


async def test_all_that_a_trusted_peer_says_passes() -> None:
    names = [f"x-forwarded-{part.lower()}" for part in PARTS if part not in ("", "For")]
    headers = [(name.encode(), b"said") for name in names]
    request = await sent(Client(headers=headers), trusted_proxies=["192.0.2.7"])
    assert [name for name, value in request.fields if value == "said"] == names


@pytest.mark.parametrize("trusted", [[], ["192.0.2.7"]])
async def test_no_line_break_hides_in_what_is_said_of_a_client(trusted: list[str]) -> None:
    client = Client(
        headers=[(b"x-forwarded-proto", b"https\nx: 1"), (b"x-forwarded-user", b"a\rb"), (b"x-real-ip", b"\0")]
    )
    async with forwarding(answering(OK), trusted_proxies=trusted) as (upstream, forwarder):
        await client.call(forwarder)
        assert client.status == 400
        assert upstream.requests == []


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3"])
async def test_a_trusted_peer_is_believed_and_added(peer: str) -> None:
    request = await sent(Client(headers=FORGED, client=(peer, 1)), trusted_proxies=["10.0.0.0/8"])
    assert request.value("x-forwarded-for") == f"203.0.113.9, {peer}"
    assert request.value("x-forwarded-proto") == "https"
    assert request.value("x-forwarded-host") == "shop.example"
    assert request.value("x-real-ip") == "203.0.113.9"


async def test_a_peer_without_an_address_is_unknown_and_not_trusted() -> None:
    request = await sent(Client(headers=FORGED, client=None), trusted_proxies=["0.0.0.0/0"])
    assert request.value("x-forwarded-for") == "unknown"


# Back to the client


async def test_a_small_response_comes_back_as_two_messages() -> None:
    client = await answered(b"HTTP/1.1 201 Created\r\ncontent-length: 4\r\nX-A: 1\r\nX-A: 2\r\n\r\n\x00\xff\r\n")
    assert (client.status, client.body, client.done, len(client.messages)) == (201, b"\x00\xff\r\n", True, 2)
    assert client.values(b"x-a") == [b"1", b"2"]


async def test_compressed_bytes_are_not_touched() -> None:
    body = gzip.compress(b"x" * 1000)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    client = await answered(head + body)
    assert (client.body, client.values(b"content-encoding")) == (body, [b"gzip"])


async def test_hop_by_hop_fields_of_a_response_are_dropped() -> None:
    dropped = (
        b"Connection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: x\r\nUpgrade: h2c\r\n"
    )
    client = await answered(
        b"HTTP/1.1 200 OK\r\n" + dropped + b"Set-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 0\r\n\r\n"
    )
    assert [name for name, _ in client.headers] == [b"set-cookie", b"set-cookie", b"content-length", b"date", b"via"]
    assert client.values(b"set-cookie") == [b"a", b"b"]


async def test_the_upstreams_date_is_kept_and_a_missing_one_added() -> None:
    date = b"Tue, 15 Nov 1994 08:12:31 GMT"
    kept = await answered(b"HTTP/1.1 200 OK\r\nDate: " + date + b"\r\ncontent-length: 0\r\n\r\n")
    assert kept.values(b"date") == [date]
    added = await answered(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert parsedate_to_datetime(added.values(b"date")[0].decode()).year >= 2024
    assert added.values(b"via") == [b"1.1 oncegate"]


async def test_a_head_response_has_its_length_and_no_body_and_its_connection_is_used_again() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"
    async with forwarding(answering(head, OK, head, OK), keepalive=600) as (upstream, forwarder):
        for method, length, body in [("HEAD", b"1000", b""), ("GET", b"2", b"ok")] * 2:
            client = await Client(method).call(forwarder)
            assert (client.values(b"content-length"), client.body, client.done) == ([length], body, True)
        assert upstream.connections == 1


@pytest.mark.parametrize("head", [b"transfer-encoding: chunked\r\n", b""])
async def test_a_head_response_without_a_length_is_complete_at_once(head: bytes) -> None:
    async with forwarding(answering(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")) as (_, forwarder):
        client = await Client("HEAD").call(forwarder)
        assert (client.status, client.body, client.done) == (200, b"", True)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@pytest.mark.parametrize("length", [b"", b"content-length: 7\r\n"])
async def test_a_status_without_content_has_none_whatever_its_length_says(status: bytes, length: bytes) -> None:
    behaviour = answering(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n", OK)
    async with forwarding(behaviour, keepalive=600) as (upstream, forwarder):
        client = await Client().call(forwarder)
        assert (client.status, client.body, client.values(b"content-length")) == (int(status[:3]), b"", [])
        assert (await Client().call(forwarder)).body == b"ok"
        assert upstream.connections == 1


@pytest.mark.parametrize(("method", "status"), [("HEAD", b"200 OK"), ("GET", b"204 No Content"), ("GET", b"304 Same")])
async def test_a_body_behind_a_response_without_content_is_dropped_with_its_connection(
    method: str, status: bytes
) -> None:
    head = b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\n\r\n"
    async with forwarding(answering(head + b"ab"), keepalive=600) as (_, forwarder):
        client = await Client(method).call(forwarder)
        assert (client.status, client.body, client.done) == (int(status[:3]), b"", True)
        assert forwarder.upstream.idle == 0


async def test_a_method_may_be_any_token() -> None:
    async with forwarding(answering(OK)) as (upstream, forwarder):
        for method in ("FOO", "VERSION-CONTROL", "get", "!#$%&'*+.^_`|~0"):
            assert (await Client(method).call(forwarder)).body == b"ok"
            assert upstream.requests[-1].line.startswith(f"{method} / ")


async def test_interim_responses_are_passed_over() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
    for pieces in ([interim + OK], [interim, OK], [interim[:30], interim[30:] + OK]):
        async with Upstream(in_pieces(pieces)) as upstream:
            client = await Client().call(Forwarder(upstream.url, keepalive=0))
            assert (client.status, client.body, client.values(b"link")) == (200, b"ok", [])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n4\r\n\0\r\n\xff\r\n0\r\nX-T: trailer\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding:  Chunked \r\n\r\n07\r\nabc\0\r\n\xff\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nabc\0\r\n\xff",
        b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nabc\0\r\n\xff",
        b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\nabc\0\r\n\xff",
        b"\r\nHTTP/1.1 200\r\nContent-Length: 7\r\n\r\nabc\0\r\n\xff",
    ],
)
async def test_each_way_to_frame_a_body(answer: bytes) -> None:
    client = await answered(answer)
    assert (client.status, client.body, client.done, client.values(b"x-t")) == (200, b"abc\0\r\n\xff", True, [])
    assert client.values(b"transfer-encoding") == []


async def test_a_unix_socket_is_an_upstream(tmp_path: Path) -> None:
    async with Upstream(answering(OK), path=tmp_path / "app.sock") as upstream:
        client = Client(path=b"/x")
        client.scope["headers"] = []
        await client.call(forwarder := Forwarder(upstream.url))
        assert (client.body, upstream.requests[0].value("host")) == (b"ok", "localhost")
        await forwarder.close()
