"""A command ran and its reply was lost: the gateway must neither run anything twice nor block a key for nothing.

Rules of docs/contract.md: R5.25.
"""

import httpx
import pytest

from testing.caller import Caller, fresh_key, is_replay, slug, until_answer
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.proxy import Then
from testing.waiting import until
from tests.system.conftest import Start
from tests.system.proxy import LossyProxy

pytestmark = pytest.mark.parametrize("then", ["cut", "stall"])


@pytest.fixture
def behind(start: Start, ledger: Ledger, proxy: LossyProxy) -> Gateway:
    """A gateway whose Redis is behind the proxy; a lease that no test outlives, so that nothing heals by lapsing."""
    routes = [{"path": "/open/*", "on_cache_down": "fail_open"}]
    return start(ledger.url, proxy.url, cache_timeout=1, idempotency={"lease": 300}, routes=routes).ready()


async def test_a_claim_whose_reply_is_lost_is_withdrawn_and_the_key_is_free(
    behind: Gateway, proxy: LossyProxy, ledger: Ledger, caller: Caller, then: Then
) -> None:
    key = fresh_key()
    proxy.lose_reply_to("claim", then)
    answer = await caller.post(behind, key)
    assert (answer.status_code, slug(answer)) == (503, "cache-unavailable")
    assert answer.json()["retryable"] is True
    assert answer.headers["retry-after"]
    await until(lambda: proxy.lost, "the reply is lost")
    assert proxy.lost.startswith(b":1\r\n")  # Redis had made the claim
    assert ledger.arrivals(key) == []
    answer = await caller.settled(behind, key)
    assert (answer.status_code, is_replay(answer)) == (201, False)
    assert ledger.attempts(key) == ["1"]


async def test_a_result_whose_acknowledgement_is_lost_is_recorded_once_and_replayed(
    behind: Gateway, proxy: LossyProxy, ledger: Ledger, caller: Caller, then: Then
) -> None:
    key = fresh_key()
    proxy.lose_reply_to("complete", then)
    answer = await caller.post(behind, key)
    assert answer.status_code == 201  # the client gets its response all the same
    await until(lambda: proxy.lost, "the reply is lost")
    assert proxy.lost.startswith(b":1\r\n")
    await caller.meets_replay(behind, key, of=answer)
    assert ledger.attempts(key) == ["1"]


async def test_a_release_whose_acknowledgement_is_lost_leaves_the_key_free(
    behind: Gateway, proxy: LossyProxy, ledger: Ledger, caller: Caller, then: Then
) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(429), Reply(201))
    proxy.lose_reply_to("release", then)
    assert (await caller.post(behind, key)).status_code == 429
    await until(lambda: proxy.lost, "the reply is lost")
    answer = await caller.settled(behind, key)
    assert (answer.status_code, is_replay(answer)) == (201, False)
    assert is_replay(await caller.settled(behind, key))  # a release that came again later would have undone this
    assert ledger.attempts(key) == ["1", "1"]


async def test_under_fail_open_a_claim_whose_reply_is_lost_does_not_block_its_key(
    behind: Gateway, proxy: LossyProxy, ledger: Ledger, caller: Caller, then: Then
) -> None:
    key, path = fresh_key(), "/open/payments"
    proxy.lose_reply_to("claim", then)
    answer = await caller.post(behind, key, path)
    assert answer.status_code == 201
    assert answer.headers["cache-status"] == "oncegate; fwd=bypass"
    assert len(ledger.arrivals(key)) == 1
    # Until Redis answers again, each request is forwarded without a record; then one is enforced, as the first.
    enforced = await until_answer(lambda: caller.post(behind, key, path), is_enforced)
    assert enforced.status_code == 201
    assert ledger.attempts(key)[-1] == "1"
    assert is_replay(await caller.post(behind, key, path))


def is_enforced(answer: httpx.Response) -> bool:
    return "fwd=bypass" not in answer.headers.get("cache-status", "") and slug(answer) != "in-flight"
