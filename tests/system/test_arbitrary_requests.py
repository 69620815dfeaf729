"""Whatever bytes a client sends in a request that is framed at all: an answer, no traceback, no hang, no leaked claim."""

import re
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oncegate.cache.record import State
from testing.caller import BODY_MARK, CALLER_MARK, KEY_MARK, RawClient
from testing.gateway import Gateway
from testing.ledger import Ledger
from testing.servers import RedisServer
from tests.system.conftest import Start
from tests.system.records import held

NAMESPACE = f"arbitrary-{uuid4().hex}"
PATIENCE = 60.0
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) ")

# Most pass the parser, so that they meet our own code; some are its business.
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300).map(str.encode)
octets = st.text(st.characters(min_codepoint=0x80, max_codepoint=0xFF), max_size=60).map(
    lambda text: text.encode("latin-1")
)
anything = st.binary(max_size=60).map(lambda value: value.replace(b"\r", b" ").replace(b"\n", b" "))
values = st.one_of(printable, printable, printable, octets, st.just(b""), st.one_of(printable, anything))
tokens = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters='",\\'), max_size=60)
quoted = st.text(max_size=20).map(lambda text: b'"%b"' % text.encode("utf-8", "ignore"))
keys = st.one_of(*[tokens.map(str.encode)] * 3, values, quoted, st.just(b"k" * 256))
names = st.sampled_from(
    b"idempotency-key prefer idempotency-raise-on-duplicate idempotency-attempt authorization x-any content-type "
    b"accept-encoding via x-forwarded-for cookie date te host".split()
)
paths = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=60).map(
    lambda text: b"/" + text.encode()
)
odd_targets = st.sampled_from(
    [
        b"/" + b"a" * 9000,
        *b"* // /../.. /% /%zz /%00 /%ff%fe /? /?? /a?b#c http://x/y x:1 //x/y /;a=b /a%0d%0ab".split(),
    ]
)
any_target = st.binary(max_size=60).map(lambda value: b"/" + re.sub(rb"[\r\n ]", b"", value))
targets = st.one_of(st.just(b"/payments"), paths, paths, odd_targets, st.one_of(paths, any_target))
methods = st.sampled_from([b"POST"] * 6 + b"PATCH PUT GET DELETE OPTIONS CONNECT post QUERY".split())


@dataclass(frozen=True)
class Request:
    method: bytes
    target: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes
    chunked: bool

    def encode(self, mark: bytes) -> bytes:
        """``mark`` makes the keys of one example its own."""
        lines = [b"%b %b HTTP/1.1" % (self.method, self.target)]
        for name, value in self.fields:
            own = name == b"idempotency-key" and not value.startswith(b'"') and len(value) < 100 and value.strip()
            lines.append(b"%b: %b" % (name, mark + value if own else value))
        if not any(name == b"host" for name, _ in self.fields):
            lines.append(b"host: localhost")
        lines.append(b"connection: close")
        if not self.chunked:
            return b"\r\n".join([*lines, b"content-length: %d" % len(self.body), b"", self.body])
        chunk = b"%x\r\n%b\r\n" % (len(self.body), self.body) if self.body else b""
        return b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", chunk + b"0\r\n\r\n"])


requests = st.builds(
    Request,
    methods,
    targets,
    st.tuples(keys, st.lists(st.tuples(names, values), max_size=4)).map(
        lambda all: [(b"idempotency-key", all[0]), *all[1]]
    ),
    st.one_of(st.binary(max_size=200), st.just(b"x" * 1_100_000)),
    st.booleans(),
)


@pytest.fixture(scope="module")
def gateways(start_for_module: Start, ledger: Ledger, redis_server: RedisServer) -> list[Gateway]:
    rules = {"max_wait": 0, "response_timeout": 20}
    shared = start_for_module(ledger.url, redis_server.url, namespace=NAMESPACE, cache_timeout=10, idempotency=rules)
    as_json = start_for_module(ledger.url, idempotency={**rules, "fingerprint": "json", "on_missing_key": "generate"})
    return [shared.ready(), as_json.ready()]


def exchange(gateway: Gateway, request: bytes) -> bytes:
    with RawClient(gateway, PATIENCE) as client:
        with suppress(ConnectionError):  # refused before it was read to its end
            client.send(request)
        return client.receive_all()


def check(gateways: list[Gateway], request: Request) -> None:
    data = request.encode(KEY_MARK.encode() + uuid4().hex.encode())
    for gateway in gateways:
        for _ in range(2):
            answer = exchange(gateway, data)
            found = _STATUS.match(answer)
            # A 413 may be overtaken by the reset that tells a client which is still sending: nothing is left to read then.
            assert found is not None or (answer == b"" and len(request.body) > 1_000_000), answer[:200]
            assert found is None or found[1] not in (b"500", b"502", b"504"), answer[:400]
            assert b"Traceback" not in answer
            assert b'"in-flight"' not in answer  # the second time: what the first one claimed, it has settled
        assert not gateway.has_ended


EXAMPLES = [
    Request(b"POST", b"/%00", [(b"idempotency-key", b"\x00")], b"\x00", chunked=False),
    Request(b"POST", b"/\xff\xfe", [(b"idempotency-key", b"\xff\xfe")], b"\xff", chunked=True),
    Request(
        b"POST", b"/a", [(b"idempotency-key", b"k"), (b"prefer", b"wait=999999999999")], b"[" * 5000, chunked=False
    ),
    Request(b"POST", b"/a", [(b"idempotency-key", b"k"), (b"idempotency-key", b"j")], b"", chunked=False),
    Request(b"POST", b"*", [(b"idempotency-key", b"k")], b"", chunked=False),
    Request(b"CONNECT", b"x:1", [(b"idempotency-key", b"k")], b"", chunked=False),
]


@pytest.mark.parametrize("request_", EXAMPLES)
def test_odd_requests_get_an_answer_and_leave_no_claim(gateways: list[Gateway], request_: Request) -> None:
    check(gateways, request_)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests)
@example(Request(b"POST", b"/", [(b"idempotency-key", b'""')], b'{"a": 1, "a": 2}', chunked=True))
def test_arbitrary_requests_get_an_answer_and_leave_no_claim(gateways: list[Gateway], request: Request) -> None:
    check(gateways, request)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests)
def test_many_arbitrary_requests_get_an_answer_and_leave_no_claim(gateways: list[Gateway], request: Request) -> None:
    check(gateways, request)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(min_size=1, max_size=300))
def test_arbitrary_bytes_are_refused_or_awaited_and_break_nothing(gateways: list[Gateway], data: bytes) -> None:
    for gateway in gateways:
        with RawClient(gateway, PATIENCE) as client:
            with suppress(ConnectionError):  # refused before it was sent to its end
                client.send(data)
                client.send(b"\r\n\r\n\x00\r\n\r\n")  # whatever it was, it is over
            client.finish()
            answer = client.receive_all()
        assert b"Traceback" not in answer
        assert not answer.startswith(b"HTTP/1.1 500")
        assert not gateway.has_ended


def test_after_all_that_no_claim_is_left_and_the_gateways_serve(
    gateways: list[Gateway], redis_server: RedisServer
) -> None:
    left = [held for held in held(redis_server.url, NAMESPACE).values() if held.record.state is State.IN_FLIGHT]
    assert left == []
    for gateway in gateways:
        request = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: %b\r\nidempotency-key: %b\r\n"
        request = request % (CALLER_MARK.encode(), KEY_MARK.encode() + uuid4().hex.encode())
        assert exchange(gateway, request + b"content-length: 8\r\n\r\n" + BODY_MARK[:8]).startswith(b"HTTP/1.1 201")
