"""An admission that ends before its answer: cancelled, or left behind by an event loop that was closed."""

import asyncio
from uuid import uuid4

import pytest

from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.admission.admission import Admissions
from oncegate.middleware.admission.request import Address, AdmissionRequest
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings
from testing.servers import RedisServer
from testing.waiting import until


@pytest.mark.parametrize("policy", ["fail_closed", "fail_open"])
@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_an_admission_that_ends_early_gives_back_its_slot(server: RedisServer, how: str, policy: str) -> None:
    cache = RedisCache.from_url(server.url, timeout=60)
    await cache.check()
    admissions = Admissions(cache, max_in_flight=1)
    rules = compile_policy(IdempotencySettings(on_cache_down="fail_open" if policy == "fail_open" else "fail_closed"))
    key = f"{uuid4().hex}:k:s"
    server.pause()
    if how == "closed":
        admission = admissions.admit(AdmissionRequest(Address(key, bytes(16)), rules))
        admission.send(None)
        admission.close()
    else:
        task = asyncio.create_task(admissions.admit(AdmissionRequest(Address(key, bytes(16)), rules)))
        await until(lambda: admissions.in_flight.slots.taken, "a claim is under way")
        task.cancel()
        await asyncio.wait([task])
    assert admissions.in_flight.slots.taken == 0
    server.resume()
    if how == "cancelled":
        await until(lambda: not admissions.in_flight.owed.by_key, "the claim is given back")
        assert await cache.get(key) is None
    await cache.close()
