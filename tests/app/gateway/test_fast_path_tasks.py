"""What depends on when things happen: on the fast path, and without it."""

import asyncio
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest

from oncegate.app.gateway.gateway import Gateway
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission.admission import AdmissionRequest, Admissions
from testing.served import raw
from testing.waiting import until
from tests.app.twins import Twin, twin


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

    def standing_still(self: Admissions, request: AdmissionRequest, answer: Any) -> Any:
        monkeypatch.setattr(Admissions, "admitted", admitted)  # the successor is none of it
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, take_over()).result()
        return admitted(self, request, answer)

    admitted = Admissions.admitted
    async with twin(True, upstream_keepalive=600, **rules) as late:
        be_patient(late.gateway)
        other = payment("201", **{"idempotency-key": "other"})
        while (await late.client.request(**other)).status_code != 201:  # noqa: ASYNC110 - until the cache can be reached
            await asyncio.sleep(0.05)
        heard, taken = len(late.heard), late.taken
        monkeypatch.setattr(Admissions, "admitted", standing_still)
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
