"""Every parser that a client, an upstream or Redis feeds, and the pieces of what means something to each."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import unquote

from hiredis import ProtocolError, Reader, ReplyError
from httptools import HttpParserError

from oncegate.app.http1 import RequestRefused, RequestWriter, TrustedPeers, connection_options
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.server import head as inbound_head
from oncegate.app.server.connection import InboundConnection
from oncegate.app.server.parser import InboundParser
from oncegate.app.server.scope import RequestTarget, scope_of, shared_scope
from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.app.upstream.response import ResponseReader
from oncegate.cache.codec import decode
from oncegate.cache.errors import CacheError
from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.connection import faults
from oncegate.client.retry import retry_after_seconds
from oncegate.middleware.http.asgi import read_body
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.problems import original_result
from oncegate.middleware.rules.errors import Refusal
from oncegate.middleware.rules.keys.canonical_json import NotCanonical, canonical_json
from oncegate.middleware.rules.keys.key import fingerprint, parse_key, pick, record_key, scope_parts
from oncegate.middleware.rules.paths.readings import folded, normalise, readings
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.prefer import preferences, read_line, wants_error
from oncegate.middleware.rules.settings import IdempotencySettings, Route

REFUSALS = (
    Refusal,
    NotCanonical,
    RequestRefused,
    CacheError,
    inbound_head.HeadRefused,
    ProtocolError,
    HttpParserError,
    ValueError,
)
"""What parsers may say of what they are given."""
RULES = compile_policy(IdempotencySettings(scope=("header:Authorization", "header:Cookie")))
POLICIES = Policies(IdempotencySettings(), [Route(path="/a*b*c*/d"), Route(path="*/a*a*;*")])
WRITER = RequestWriter(b"", b"upstream", TrustedPeers([]))
BEHIND_PROXY = RequestWriter(b"", b"upstream", TrustedPeers(["10.0.0.0/8"]))

OPERATORS = Bearer([AdminToken.of("", "token")])

Parser = Callable[[bytes], object]


def lines_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """Field lines, as a server gives them."""
    return [(name.strip().lower(), value) for name, _, value in (line.partition(b":") for line in data.split(b"\n"))]


def caller(data: bytes) -> object:
    fields = pick(lines_of(data), RULES.wanted)
    return record_key("n", "k", scope_parts(fields, RULES.scope_names))


def forwarded(data: bytes, writer: RequestWriter = WRITER) -> object:
    scope = {"method": "POST", "path": "/", "raw_path": b"/", "client": ("10.0.0.1", 1), "headers": lines_of(data)}
    return writer.head(scope)


def target(data: bytes) -> object:
    return scope_of(RequestTarget(b"POST", b"/" + data), "1.1", [], shared_scope(None, None, "http"))


def authority(data: bytes) -> object:
    return inbound_head.without_authority(data, b"POST", "1.1", [(b"host", b"a"), *lines_of(data)[:1]])


def route(data: bytes) -> object:
    """Never one that is kept: the same answer again costs nothing, whatever its path's length."""
    return POLICIES.match("POST", "/" + data.decode("latin-1"), b"/%2f")


def upstream_head(data: bytes, piece: int = 65536) -> object:
    reader = ResponseReader()
    reader.expect(is_head=False)
    for start in range(0, len(data), piece):
        reader.feed(data[start : start + piece])
    return reader.take()


def record(head: bytes) -> object:
    fixed = b"\x01S" + bytes(32) + (1).to_bytes(4, "big") + len(head).to_bytes(4, "big")
    return decode(fixed + head, 1000, traced=True)


def redis_reply(data: bytes) -> object:
    reader = Reader()
    for start in range(0, len(data), 64):
        reader.feed(data[start : start + 64])
    with suppress(TypeError):  # a map as the name of a map's member
        return reader.gets()
    return None


def whole_body(data: bytes) -> object:
    """A body that comes in pieces of eight bytes."""
    starts = iter(range(0, len(data), 8))

    async def receive() -> Any:
        start = next(starts, None)
        return {
            "body": data[start : start + 8] if start is not None else b"",
            "more_body": start is not None,
            "type": "x",
        }

    return asyncio.run(read_body(receive, {}, len(data), 20.0))


JSON = (
    b"[",
    b"]",
    b"{",
    b"}",
    b"[[]],",
    b'{"":',
    b"1,",
    b"1.0e1,",
    b'"N":1,',
    b'"",',
    b"\\u0000",
    b'"',
    b"\\",
    b"null,",
    b" ",
)
FIELD = (
    b'"',
    b"\\",
    b'\\"',
    b"a",
    b"=",
    b";",
    b",",
    b" ",
    b"\t",
    b'a="',
    b"wait=1",
    b"; a",
    b"N",
    b":",
    b"*",
    b"\xff",
    b"\0",
)
LINES: tuple[bytes, ...] = (
    b"authorization: a\n",
    b"cookie: a=b; c\n",
    b"prefer: wait=1\n",
    b"a:\n",
    b"connection: a, b\n",
    b"connection: N\n",
)
LINES = (
    *LINES,
    b"c,",
    b"N:\n",
    b"x-forwarded-for: a\n",
    b"x_forwarded_for: b\n",
    b"content-length: 1\n",
    b"transfer-encoding: chunked\n",
)
PATH = (
    b"/",
    b"//",
    b"a",
    b"b",
    b"/a",
    b"ab",
    b"bc",
    b"c",
    b"..",
    b".",
    b";",
    b"\\",
    b"%2e",
    b"%",
    b"/../",
    b"/a;b/",
    b"d",
    b"?",
    b"#",
)
HEAD: tuple[bytes, ...] = (
    b"\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"a: b\r\n",
    b"connection: N\r\n",
    b"N,",
    b"keep-alive: timeout=1,",
)
HEAD = (
    *HEAD,
    b"transfer-encoding: chunked\r\n\r\n",
    b"1\r\na\r\n",
    b"b",
    b" ",
    b"\t",
    b":",
    b"0\r\n\r\n",
    b"content-length: 9\r\n",
)
REPLY = (
    b"*1\r\n",
    b"*3\r\n",
    b"$1\r\na\r\n",
    b":1\r\n",
    b"+OK\r\n",
    b"-MOVED 1 a:1\r\n",
    b"-ERR ",
    b"a",
    b"$-1\r\n",
    b"_\r\n",
    b"%1\r\n",
)
WORDS = (b"MOVED ", b"ASK 1 ", b"OOM", b"A", b"a:1", b":", b"1", b" ", b"9", b".", b"WRONGTYPE ")

UPGRADE = (
    b"FOO / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\na",
    b"GET / RTSP/1.0\r\n",
    b"a: b\r\n",
    b"\r\n",
    b"a",
)


class Nobody:
    """A connection that takes whatever its parser makes of what came."""

    loop: Any = None

    def head_is_complete(self, request: object, ends: bool) -> None: ...

    def body_came(self, body: bytes) -> None: ...

    def request_is_whole(self) -> None: ...


def requests_in_pieces(data: bytes, size: int = 16) -> None:
    """As a client sends them that cuts them anywhere."""
    parser = InboundParser(cast(InboundConnection, Nobody()))
    for at in range(0, len(data), size):
        parser.feed(data[at : at + size])


PARSERS: dict[str, tuple[Parser, tuple[bytes, ...]]] = {
    "key": (parse_key, FIELD),
    "preferences": (read_line, FIELD),
    "preferences, all lines": (lambda data: preferences(data.split(b"\t")), FIELD),
    "raise on duplicate": (lambda data: wants_error([data]), FIELD),
    "caller": (caller, LINES),
    "operator": (lambda data: OPERATORS.brought({"headers": [(b"authorization", data)]}), (*FIELD, b"Bearer ")),
    "forwarded head": (forwarded, (*LINES, *FIELD)),
    "forwarded head, proxy's": (lambda data: forwarded(data, BEHIND_PROXY), LINES),
    "connection options": (connection_options, FIELD),
    "target": (target, PATH),
    "authority": (authority, (*PATH, b"http://", b"a.b", b"@", b"[", b"host: a\n")),
    "client's requests": (requests_in_pieces, (*HEAD, *UPGRADE)),
    "client's target": (lambda data: requests_in_pieces(b"GET /" + data), (b"a", b"%41", b"?", b"/")),
    "readings": (lambda data: readings(unquote(data.decode("latin-1")), data), PATH),
    "route": (route, PATH),
    "normalised path": (lambda data: normalise(data.decode("latin-1")), PATH),
    "folded path": (lambda data: folded(data.decode("latin-1")), PATH),
    "body as JSON": (canonical_json, JSON),
    "body": (lambda data: fingerprint("POST", data, data, data, as_json=True), JSON),
    "body in pieces": (whole_body, (b"a", b"b")),
    "duplicate": (lambda data: original_result(StoredResponse(200, (), data, 0)), JSON),
    "upstream's head": (upstream_head, HEAD),
    "upstream's head, in pieces": (lambda data: upstream_head(data, 16), HEAD),
    "stored response": (lambda data: responses.stored(200, lines_of(data), b"", RULES.unstored), LINES),
    "record": (record, (*JSON, b'{"s":200,"t":0,"h":[', b'["a","b"],', b'["a",""]', b'"\xc3\xa9"')),
    "Redis's reply": (redis_reply, REPLY),
    "Redis's error": (lambda data: faults.of_claim_reply(ReplyError(data.decode("latin-1"))), WORDS),
    "Redis's redirection": (lambda data: faults.redirection(ReplyError(data.decode("latin-1"))), WORDS),
    "Redis's version": (lambda data: faults.check_version(data.decode("latin-1")), WORDS),
    "Retry-After": (
        lambda data: retry_after_seconds(data.decode("latin-1"), None, datetime.now(UTC)),
        (*FIELD, b"Mon, ", b"Jan"),
    ),
}
