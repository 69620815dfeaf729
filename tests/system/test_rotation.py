"""Secrets and encryption keys are introduced and replaced under traffic. Rules of docs/contract.md: R6.22, R6.23."""

import asyncio
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx
import pytest
import redis

from testing.rotation import STEPS
from testing.served import served
from testing.upstreams import OK, Upstream, answering

COMMANDS, COPIES = 6, 2


async def pay(client: httpx.AsyncClient, key: str) -> httpx.Response:
    """The response to a request, sent again while its first copy is in flight. Nothing else is answered."""
    async with asyncio.timeout(120):
        while True:
            answer = await client.post("/pay", headers={"Idempotency-Key": key}, content=key.encode())
            if answer.status_code != 409:
                return answer
            assert answer.json()["code"] == "in-flight"
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("pair", list(pairwise(range(len(STEPS)))), ids=str)
async def test_gateways_of_neighbouring_steps_execute_each_command_once_and_read_all_that_is_there(
    redis_url: str, pair: tuple[int, int]
) -> None:
    where: dict[str, Any] = {"cache": redis_url, "namespace": uuid4().hex, "cache_timeout": 10}
    one, other = ({**where, **STEPS[step]} for step in pair)
    async with (
        Upstream(answering(OK)) as upstream,
        served(upstream.url, **one) as (first, _),
        served(upstream.url, **other) as (second, _),
    ):
        both = (first, second)
        keys = [f"k-{number}" for number in range(COMMANDS)]
        before = [await pay(both[number % 2], f"before-{key}") for number, key in enumerate(keys)]
        copies = [pay(client, key) for key in keys for client in both for _ in range(COPIES)]
        retries = [pay(client, f"before-{key}") for key in keys for client in both]
        answers = await asyncio.gather(*copies, *retries)
        assert {answer.status_code for answer in (*before, *answers)} == {before[0].status_code}
        assert before[0].status_code < 300
        assert upstream.arrivals == 2 * COMMANDS
        assert sum("idempotent-replayed" in answer.headers for answer in answers) == len(answers) - COMMANDS


async def test_a_step_left_out_is_what_the_steps_are_for(redis_url: str) -> None:
    """The same search, where the old secret and the old key are dropped at once: executed again, or unreadable."""
    where: dict[str, Any] = {"cache": redis_url, "cache_timeout": 10}
    for names, status, arrivals in ((("secret",), 200, 2), (("encryption_keys",), 500, 1)):
        namespace = uuid4().hex
        async with Upstream(answering(OK)) as upstream:
            for step in (3, 6):
                # Which secrets there are is kept, and a gateway with another one would not start.
                redis.Redis.from_url(redis_url).delete(f"{{{namespace}:secret}}")
                settings = {name: STEPS[step][name] for name in names}
                async with served(upstream.url, namespace=namespace, **where, **settings) as (client, _):
                    answer = await pay(client, "k")
            assert (answer.status_code, upstream.arrivals) == (status, arrivals)
