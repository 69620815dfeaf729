"""A consumer is killed (SIGKILL) at one point after the other. Its effects are in a file, apart from Redis.

Rules of docs/contract.md: R8.17.
"""

import asyncio
import subprocess
from pathlib import Path

import pytest

from oncegate import DeliveryDecision
from oncegate.cache.record import State
from testing.servers import RedisServer
from testing.template import ROOT, Forked
from testing.waiting import until
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import PAY, Records

CONSUMER = """
import asyncio, os, signal, sys
from oncegate import RedisCache, Subscription, SubscriptionSettings
from tests.middleware.deliveries import PAY

url, namespace, ledger, point = sys.argv[1:]

def reached(here):
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    cache = RedisCache.from_url(url, timeout=30)
    rules = SubscriptionSettings(lease=0.5, max_attempts=2)
    subscription = Subscription("ledger", cache=cache, namespace=namespace, settings=rules)
    while True:
        reached("before the claim")
        begun = await subscription.begin(PAY)
        if begun.run:
            reached("before the effect")
            with open(ledger, "a") as file:
                print("effect", begun.attempt, file=file)
            reached("after the effect")
            await begun.execution.succeed()
            reached("before the acknowledgement")
        action = begun.execution.action if begun.run else begun.action
        if action.value != "redeliver":
            print(begun.decision.value, flush=True)
            break
        await asyncio.sleep(0.02)
    await cache.close()

asyncio.run(main())
"""


async def consume(server: RedisServer, namespace: str, ledger: Path, point: str = "") -> str:
    """Run a consumer until it would acknowledge or dead-letter, and says of what it was; or until it dies at ``point``."""
    arguments = (server.url, namespace, str(ledger), point)
    with Forked("-c", CONSUMER, *arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed, _ = await asyncio.to_thread(process.communicate)
            assert process.returncode == (-9 if point else 0)
            return str(printed).strip()
        finally:
            process.kill()


@pytest.mark.parametrize("cache", ["redis"], indirect=True)
@pytest.mark.parametrize(
    ("point", "decision", "effects"),
    [
        ("before the claim", "run", ["effect 1"]),
        ("before the effect", "run", ["effect 2"]),
        ("after the effect", "run", ["effect 1", "effect 2"]),
        ("before the acknowledgement", "duplicate", ["effect 1"]),
    ],
)
async def test_after_a_kill_the_redelivery_does_what_is_still_to_be_done(
    redis_server: RedisServer,
    records: Records,
    namespace: str,
    tmp_path: Path,
    point: str,
    decision: str,
    effects: list[str],
) -> None:
    """After the effect and before its record is the window: the effect comes twice."""
    ledger = tmp_path / "ledger"
    await consume(redis_server, namespace, ledger, point)
    assert await consume(redis_server, namespace, ledger) == decision
    assert ledger.read_text().splitlines() == effects
    assert await records.state("ledger") is State.SUCCEEDED


@pytest.mark.parametrize("cache", ["redis"], indirect=True)
async def test_a_command_that_kills_its_consumer_is_dead_after_the_last_attempt(
    subscribe: MakeSubscription, redis_server: RedisServer, namespace: str, records: Records, tmp_path: Path
) -> None:
    for _ in range(2):
        await consume(redis_server, namespace, tmp_path / "ledger", "before the effect")
    ledger = subscribe("ledger", lease=0.5, max_attempts=2)

    async def is_over() -> bool:
        begun = await ledger.begin(PAY)
        assert not begun.run
        return begun.decision is DeliveryDecision.EXHAUSTED

    await until(is_over)
    state, attempt, body = await records.kept("ledger")
    assert (state, attempt) == (State.FAILED, 2)
    assert b'"dead":true' in (body or b"")
