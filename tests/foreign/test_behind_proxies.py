"""Two gateways behind nginx, HAProxy and Caddy, as docs/behind-proxies.md has it: retries of the proxy's, lost answers, kills.

Beside what the page recommends runs what it warns of, where the fault shows. Rules of docs/contract.md: R9.24, R9.31.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from oncegate.app.settings.loading.sources import load
from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.proxy import BreakingProxy
from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.foreign.conftest import decided
from tests.foreign.edges import EDGES, Edge, block
from tests.foreign.talking import Talking
from tests.system.conftest import Start

CARELESS = {
    "nginx": {"error timeout;  # and no POST": "error timeout non_idempotent;"},
    "haproxy": {"if METH_POST !{ req.hdr(Idempotency-Key) -m found }": "if { always_false }"},
    "caddy": {"lb_try_duration 5s": "lb_try_duration 5s\n        lb_retry_match method POST"},
}
"""What the page warns of: retries of what has no key."""
HURRIED = {
    "nginx": {"proxy_read_timeout 75s": "proxy_read_timeout 1s"},
    "haproxy": {"timeout server 75s": "timeout server 1s"},
    "caddy": {"response_header_timeout 75s": "response_header_timeout 1s"},
}
OLD = {"nginx": {"proxy_http_version 1.1;": ""}}


class Lost:
    """Two gateways, each behind a proxy that can lose an answer; an edge in front of both."""

    def __init__(self, start: Start, upstream: str, redis: RedisServer, stack: ExitStack, **settings: Any) -> None:
        self.gateways = [start(upstream, redis.url, **settings) for _ in range(2)]
        for gateway in self.gateways:
            gateway.ready()
        self.between = [stack.enter_context(BreakingProxy(gateway.address[1])) for gateway in self.gateways]
        self._stack = stack

    def edge(self, kind: str, changes: dict[str, str] | None = None) -> Edge:
        return self._stack.enter_context(EDGES[kind]([each.port for each in self.between], changes))

    def edge_without_proxies(self, kind: str) -> Edge:
        return self._stack.enter_context(EDGES[kind]([each.address[1] for each in self.gateways]))


@pytest.fixture(scope="module")
def pair(start: Start, ledger: Ledger, redis_server: RedisServer) -> Iterator[Lost]:
    with ExitStack() as stack:
        yield Lost(
            start,
            ledger.url,
            redis_server,
            stack,
            namespace=fresh_key(),
            trusted_proxies=["127.0.0.1"],
            idempotency={"lease": 2, "response_timeout": 60},
            cache_timeout=0.5,
        )


@pytest.fixture(scope="module")
def edges(pair: Lost) -> dict[str, Edge]:
    """One of each kind, as the page has it, started when it is asked for."""
    return {}


@pytest.fixture(params=EDGES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def edge(kind: str, edges: dict[str, Edge], pair: Lost) -> Edge:
    if kind not in edges:
        edges[kind] = pair.edge(kind)
    return edges[kind]


def post(
    edge: Edge, key: str | None, body: bytes = b"amount=1", path: str = "/payments", **more: Any
) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return httpx.post(
        edge.url + path, headers={"Authorization": "Bearer a", **headers}, content=body, timeout=DEADLINE, **more
    )


def code(answer: httpx.Response) -> str:
    """A problem's; empty where the proxy has answered itself."""
    is_ours = answer.headers.get("content-type") == "application/problem+json"
    return str(answer.json()["code"]) if is_ours else ""


def losing(pair: Lost, edge: Edge, keyed: bool, body: bytes = b"amount=1") -> tuple[httpx.Response, str]:
    """The answer to a `POST` of which one gateway's answer was lost on its way to the edge, and its path."""
    between = pair.between[0]
    while True:  # until the edge has chosen that gateway
        path = f"/payments/{fresh_key()}"
        between.watch(path.encode(), "cut")
        answer = post(edge, path if keyed else None, body, path)  # a path is a key, too
        if not between.is_watching:
            assert b"201" in between.lost
            return answer, path


def arrived(ledger: Ledger, path: str) -> int:
    return sum(request.line.split()[1] == path for request in ledger.serving().requests)


def test_the_gateways_configuration_is_one(tmp_path: Any) -> None:
    (tmp_path / "example.toml").write_text(block("toml"))
    load({"upstream": "http://127.0.0.1:9000"}, str(tmp_path / "example.toml"))


def test_a_retry_gets_the_first_answer_from_either_gateway(edge: Edge, pair: Lost, ledger: Ledger) -> None:
    key = fresh_key()
    answers = [post(edge, key) for _ in range(6)]

    def each_has_replayed() -> bool:
        answers.append(post(edge, key))
        return all(decided(gateway, "replayed") for gateway in pair.gateways)

    wait_until(each_has_replayed, "a retry has come to either gateway, which Caddy draws")
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.content for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None] + ["true"] * (len(answers) - 1)
    (arrival,) = ledger.arrivals(key)
    assert arrival.value("x-forwarded-for") == "127.0.0.1, 127.0.0.1"  # the client's, and the edge's, which is trusted
    assert arrival.value("host") == f"127.0.0.1:{edge.port}"


def test_concurrent_duplicates_are_executed_once(edge: Edge, ledger: Ledger) -> None:
    key, answers = fresh_key(), []
    threads = [threading.Thread(target=lambda: answers.append(post(edge, key))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert post(edge, key).headers["idempotent-replayed"] == "true"
    assert len(ledger.arrivals(key)) == 1


def test_a_lost_answer_is_had_again(edge: Edge, pair: Lost, ledger: Ledger) -> None:
    """By the proxy's retry, or the client's where the proxy makes none."""
    answer, path = losing(pair, edge, keyed=True)
    if edge.kind == "caddyfile":
        assert answer.status_code == 502
        answer = post(edge, path, path=path)
    assert answer.status_code == 201
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.content
    assert answer.content in pair.between[0].lost
    assert arrived(ledger, path) == 1


def test_without_a_key_a_lost_answer_is_no_second_execution(edge: Edge, pair: Lost, ledger: Ledger) -> None:
    answer, path = losing(pair, edge, keyed=False)
    assert answer.status_code in (502, 504)
    assert arrived(ledger, path) == 1


def test_without_a_key_a_proxy_that_retries_all_the_same_executes_twice(kind: str, pair: Lost, ledger: Ledger) -> None:
    """What the page warns of."""
    edge = pair.edge(kind, CARELESS[kind])
    answer, path = losing(pair, edge, keyed=False, body=b"" if kind == "caddy" else b"amount=1")
    assert answer.status_code == 201
    assert arrived(ledger, path) == 2


def test_a_proxy_that_gives_up_early_changes_nothing(kind: str, pair: Lost, ledger: Ledger) -> None:
    edge, key = pair.edge(kind, HURRIED[kind]), fresh_key()
    with ledger.gate() as gate:
        ledger.answer(key, Reply(gate=gate))
        early = post(edge, key)
        assert early.status_code in (409, 502, 504)
        gate.open()
    answer = wait_until(lambda: (got := post(edge, key)).status_code == 201 and got, "the replay")
    assert answer.headers["idempotent-replayed"] == "true"
    assert len(ledger.arrivals(key)) == 1


def test_a_gateway_that_is_killed_leaves_no_second_execution(
    kind: str, start: Start, ledger: Ledger, redis_server: RedisServer
) -> None:
    with ExitStack() as stack, ledger.gate() as gate:
        pair = Lost(
            start, ledger.url, redis_server, stack, namespace=fresh_key(), idempotency={"lease": 1.5}, cache_timeout=0.5
        )
        edge, key = pair.edge_without_proxies(kind), fresh_key()
        ledger.answer(key, Reply(gate=gate))
        answers: list[httpx.Response] = []
        first = threading.Thread(target=lambda: answers.append(post(edge, key)))
        first.start()
        wait_until(lambda: len(ledger.arrivals(key)) == 1, "the request arrives")
        runs = next(gateway for gateway in pair.gateways if decided_in_flight(gateway))
        runs.kill()
        first.join(DEADLINE)
        gate.open()
        assert answers[0].status_code in (409, 502)
        wait_until(lambda: code(post(edge, key)) == "outcome-unknown", "it is known to be unknown")
        assert len(ledger.arrivals(key)) == 1
        wait_until(lambda: post(edge, fresh_key()).status_code == 201, "the other one serves")


def decided_in_flight(gateway: Gateway) -> bool:
    lines = httpx.get(f"{gateway.url}/_oncegate/metrics", timeout=DEADLINE).text.splitlines()
    return any(line == "oncegate_attempts_in_flight 1.0" for line in lines)


def test_a_large_body_is_refused_by_a_problem(edge: Edge) -> None:
    answer = post(edge, fresh_key(), body=bytes(1_100_000))
    assert (answer.status_code, answer.json()["code"]) == (413, "payload-too-large")


CUT = Reply(200, pieces=[b"a" * 1000, b"b" * 1000], cut="in-body")


def test_a_response_that_breaks_off_does_not_look_whole(edge: Edge, ledger: Ledger) -> None:
    if edge.kind == "caddyfile":
        pytest.skip("it does, by 2.6: the page says so")
    ledger.answer("/stream", CUT)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{edge.url}/stream", timeout=DEADLINE)


def test_by_http_1_0_it_does(pair: Lost, ledger: Ledger) -> None:
    """What the page warns of."""
    edge = pair.edge("nginx", OLD["nginx"])
    ledger.answer("/stream", CUT)
    assert len(httpx.get(f"{edge.url}/stream", timeout=DEADLINE).content) == 2000


def test_nor_does_one_with_a_length(edge: Edge, ledger: Ledger) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(200, body=b"a" * 100_000, cut="in-body"))
    with pytest.raises(httpx.RemoteProtocolError):
        post(edge, key)
    assert code(post(edge, key)) == "outcome-unknown"
    assert len(ledger.arrivals(key)) == 1


def test_a_websocket_passes_both(kind: str, start: Start, redis_server: RedisServer) -> None:
    with ExitStack() as stack:
        talking = stack.enter_context(Talking())
        pair = Lost(start, talking.url, redis_server, stack, namespace=fresh_key())
        edge = pair.edge(kind)
        url = f"ws://127.0.0.1:{edge.port}/talk"
        with connect(
            url, subprotocols=[Subprotocol("b")], origin=Origin("https://shop.example"), open_timeout=DEADLINE
        ) as client:
            assert client.subprotocol == "b"
            assert client.recv(DEADLINE) == "https://shop.example"
            for sent in ("a", bytes(100_000)):
                client.send(sent)
                assert client.recv(DEADLINE) == sent
