"""The fast path changes what a request costs, nothing else: without it a gateway answers, forwards, records and counts alike."""

import asyncio
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any
from uuid import uuid4

import httpx
import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission.admission import AdmissionRequest, Enforcer
from testing.served import raw
from testing.waiting import until
from tests.app.twins import REPLIES, ROUTES, Twin, twin

COMMON = ["201", "200", "402", "500", "long"]
RARE = sorted(REPLIES.keys() - {"held", "cut"})
PATHS = ["/payments/1", *(route["path"].replace("*", "1") for route in ROUTES)]
KEYS = ["a", "a", "a", '"a"', '"b c"', "d", "", '"', "x" * 300, None, None]
BODIES = [b"{}", b"{}", b"{}", b'{ "a" : 1 }', b'{"a":1}', b"", b"x" * 200, b"x" * 70_000]


def anything(random: Random) -> dict[str, Any]:
    """Some request: few keys, paths and payloads, so that they meet; many ways to be unusual, each of them rare."""
    rare = random.random() < 0.3
    headers = [
        ("host", "api.example"),
        ("x-reply", random.choice(RARE if rare else COMMON)),
    ]
    path, key = random.choice(PATHS), random.choice(KEYS)
    if key is not None:
        key += path.strip("/") if key.isalpha() and random.random() < 0.9 else ""  # else it was used for another path
        headers.append(("idempotency-key", key))
    for name, value in (
        ("authorization", "Bearer a"),
        ("authorization", "Bearer b"),
        ("idempotency-attempt", "7"),
        ("idempotency-raise-on-duplicate", "?1"),
        ("prefer", "wait=1"),
        ("x-idempotency-key", "a"),
        ("connection", "close, x-dropped"),
        ("x-dropped", "1"),
        ("expect", "100-continue"),
    ):
        if random.random() < 0.1:
            headers.append((name, value))
    request: dict[str, Any] = {
        "method": random.choice(["POST", "POST", "POST", "POST", "PATCH", "GET", "HEAD", "DELETE", "OPTIONS"]),
        "url": path + random.choice(["", "", "", "?q=%20", "//"]),
        "headers": headers,
    }
    if request["method"] not in ("GET", "HEAD"):
        common = random.random() < 0.8 or path.startswith("/small")  # a large one might be cut off by its refusal
        request["content"] = random.choice(BODIES[:-1] if common else BODIES)
    return request


async def at_both(twins: tuple[Twin, Twin], requests: list[dict[str, Any]]) -> None:
    """All ``requests`` at the same time to both; raises where they are told apart."""
    with_it, without = [await asyncio.gather(*(one.told(**request) for request in requests)) for one in twins]
    for request, first, second in zip(requests, with_it, without, strict=True):
        assert first == second, request


def differ(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of ``requests`` that no other one beside them can be in the way of: what meets at once, chance decides about."""
    seen: set[str] = set()
    apart = []
    for request in requests:
        keys = {value.strip('"') for name, value in request["headers"] if name.endswith("idempotency-key")}
        if not keys & seen:
            apart.append(request)
        seen |= keys
    return apart


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("where", ["memory", "redis"])
async def test_whatever_is_sent_is_answered_forwarded_and_counted_as_without_it(
    where: str, seed: int, request: pytest.FixtureRequest
) -> None:
    cache = "memory://" if where == "memory" else request.getfixturevalue("redis_url")
    rules: dict[str, Any] = {"cache": cache, "cache_timeout": 10, "upstream_keepalive": 600}
    rules["idempotency"] = {"aliases": ["X-Idempotency-Key"]}
    random = Random(seed)
    async with twin(True, **rules) as with_it, twin(False, **rules) as without:
        sent: list[dict[str, Any]] = []
        for _ in range(40):
            one = random.choice(sent) if sent and random.random() < 0.4 else anything(random)
            some = differ([one, *(anything(random) for _ in range(random.choice([0, 0, 0, 4])))])
            sent += some
            await at_both((with_it, without), some)
            assert sorted(with_it.heard) == sorted(without.heard)
        assert with_it.taken > 20
        assert await with_it.counted() == await without.counted()


# -- what depends on when things happen


@pytest.fixture(params=[True, False], ids=["on the fast path", "without it"])
async def warm(request: pytest.FixtureRequest, unhurried: None) -> AsyncIterator[Twin]:
    """A gateway that has an idle connection to its upstream, so that a request can go by the fast path."""
    async with twin(request.param, upstream_keepalive=600) as one:
        assert (await one.told(method="GET", url="/"))[0] == 200
        yield one
        assert bool(one.taken) == request.param


def payment(reply: str, **headers: str) -> dict[str, Any]:
    fields = {"idempotency-key": "k", "x-reply": reply, **headers}
    return {"method": "POST", "url": "/payments", "content": b"{}", "headers": fields}


async def test_a_concurrent_request_is_refused_or_waits_for_the_outcome(warm: Twin) -> None:
    first = asyncio.create_task(warm.client.request(**payment("held")))
    await until(lambda: len(warm.heard) == 2)
    assert (await warm.client.request(**payment("held"))).json()["code"] == "in-flight"
    waiting = asyncio.create_task(warm.client.request(**payment("held", prefer="wait=20")))
    await until(lambda: warm.asked == 4)
    assert await asyncio.wait([waiting], timeout=0.05) == (set(), {waiting})
    warm.go.set()
    waited = await waiting
    assert (waited.content, waited.headers["idempotent-replayed"]) == ((await first).content, "true")
    assert waited.headers["preference-applied"] == "wait=20"


async def test_an_attempt_whose_client_leaves_is_finished_and_recorded(warm: Twin) -> None:
    leaving = asyncio.create_task(warm.client.request(**payment("held")))
    await until(lambda: len(warm.heard) == 2)
    leaving.cancel()
    await asyncio.wait([leaving])
    warm.go.set()
    waited = await warm.client.request(**payment("held", prefer="wait=20"))
    assert (waited.status_code, waited.headers["idempotent-replayed"]) == (201, "true")
    assert len(warm.heard) == 2


async def test_a_response_that_breaks_off_is_no_response_and_its_outcome_unknown(warm: Twin) -> None:
    """While nothing of it was shown there is room for a problem; behind its head there is none."""
    told = await warm.told(**payment("cut"))
    assert told[0] == (502 if warm.taken else "RemoteProtocolError")
    assert (await warm.client.request(**payment("201"))).json()["code"] == "outcome-unknown"
    assert len(warm.heard) == 2


@pytest.mark.interpreted
@pytest.mark.usefixtures("unhurried")
async def test_a_gateway_that_stands_still_after_its_claim_sends_nothing_beside_its_successor(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = {"cache": redis_url, "cache_timeout": 0.5, "idempotency": {"lease": 1.5}, "namespace": uuid4().hex}
    request = payment("201") | {"url": "/retried/1"}
    taken_over: list[httpx.Response] = []

    def be_patient(gateway: Gateway) -> None:
        """The lease is short, and allows of no patience with the cache from the start."""
        assert isinstance(gateway._cache, RedisCache)
        gateway._cache._timeout = 30

    async def take_over() -> None:
        async with twin(False, **rules) as successor:
            be_patient(successor.gateway)
            answer = await successor.client.request(**request)
            while answer.status_code in (409, 503):  # until the lease lapses, and the cache can be reached
                await asyncio.sleep(0.05)
                answer = await successor.client.request(**request)
            taken_over.append(answer)

    def standing_still(self: Enforcer, request: AdmissionRequest, answer: Any) -> Any:
        monkeypatch.setattr(Enforcer, "admitted", admitted)  # the successor is none of it
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, take_over()).result()
        return admitted(self, request, answer)

    admitted = Enforcer.admitted
    async with twin(True, upstream_keepalive=600, **rules) as late:
        be_patient(late.gateway)
        other = payment("201", **{"idempotency-key": "other"})
        while (await late.client.request(**other)).status_code != 201:  # noqa: ASYNC110 - until the cache can be reached
            await asyncio.sleep(0.05)
        heard, taken = len(late.heard), late.taken
        monkeypatch.setattr(Enforcer, "admitted", standing_still)
        answer = await late.client.request(**request)
        assert (len(late.heard), late.taken) == (heard, taken + 1)
    assert taken_over[0].status_code == 201
    assert (answer.content, answer.headers["idempotent-replayed"]) == (taken_over[0].content, "true")


async def test_pipelined_requests_are_answered_in_their_order(warm: Twin) -> None:
    post = b"POST /p HTTP/1.1\r\nhost: a\r\nidempotency-key: %b\r\ncontent-length: 2\r\n\r\n{}"
    get = b"GET /%b HTTP/1.1\r\nhost: a\r\nconnection: %b\r\n\r\n"
    came = await raw(warm.client, post % b"a" + post % b"b" + get % (b"g", b"x") + post % b"a" + get % (b"l", b"close"))
    answers = re.split(rb"HTTP/1\.1 \d+ ", came)[1:]
    said = [answer.partition(b"\r\n\r\n")[2] for answer in answers]
    assert [body.partition(b" HTTP")[0] for body in said] == [b"POST /p", b"POST /p", b"GET /g", b"POST /p", b"GET /l"]
    assert said[3] == said[0]
    assert [b"idempotent-replayed: true" in answer for answer in answers] == [False, False, False, True, False]


@pytest.mark.usefixtures("unhurried")
async def test_beyond_max_in_flight_nothing_is_claimed_and_those_that_did_not_run_hold_no_place() -> None:
    async with twin(True, upstream_keepalive=600, max_in_flight=2) as busy:
        await asyncio.gather(*(busy.told(method="GET", url="/", headers={"x-reply": "200"}) for _ in range(3)))
        for _ in range(3):
            assert (await busy.client.request(**payment("201"))).status_code == 201  # executed once, and replayed
        keys = [{"idempotency-key": key} for key in ("first", "second", "third")]
        held = [asyncio.create_task(busy.client.request(**payment("held", **key))) for key in keys[:2]]
        await until(lambda: len(busy.heard) == 6)
        refused = (await busy.client.request(**payment("201", **keys[2]))).json()
        assert (refused["code"], refused["retryable"]) == ("overloaded", True)
        busy.go.set()
        assert [(await each).status_code for each in held] == [201, 201]
        assert (await busy.client.request(**payment("201", **keys[2]))).status_code == 201
        assert busy.taken > 3
