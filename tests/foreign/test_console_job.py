"""A job of the console in a headless Chromium: thousands of unknown outcomes, counted and released step by step, by two workers.

Rules of docs/contract.md: R11.50, R11.56.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.cache.record import Record, State, Trace
from oncegate.cache.redis.store import RedisCache
from oncegate.middleware.rules.keys.key import record_key
from testing.caller import fresh_key
from testing.ledger import Ledger
from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.foreign.chrome import Chrome
from tests.foreign.conftest import fetched_or_skipped
from tests.foreign.test_console import WRITER, address, faults, fits, logged_in
from tests.system.conftest import Start

LOST = 2300
"""More than one page counts (2,000), and than two steps change (1,000 and a few)."""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with Chrome(fetched_or_skipped("chromium")) as running:
        yield running


async def fill(url: str, namespace: str) -> None:
    cache = RedisCache.from_url(url, timeout=30)
    trace = Trace("vm/1", round(time.time() * 1000) - 60_000, 10, "", "POST", "/payments")

    async def keep(number: int) -> None:
        record = Record(State.UNKNOWN, os.urandom(16), bytes(16), 1, None, trace=trace)
        assert await cache.complete(record_key(namespace, f"k-{number}", None), record, ttl_ms=600_000)

    for begin in range(0, LOST, 100):
        await asyncio.gather(*[keep(number) for number in range(begin, begin + 100)])
    await cache.close()


@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_thousands_are_counted_and_released_step_by_step(
    chrome: Chrome, start: Start, ledger: Ledger, redis_server: RedisServer, scripts: bool
) -> None:
    axe = (Path(fetched_or_skipped("node-clients")) / "node_modules/axe-core/axe.min.js").read_text("utf-8")
    tokens, namespace = [AdminToken.of("will", WRITER).setting()], fresh_key()
    gateway = start(ledger.url, redis_server.url, workers=2, namespace=namespace, admin_tokens=tokens).ready()
    asyncio.run(fill(redis_server.url, namespace))
    tab = logged_in(chrome, gateway, scripts=scripts, width=360)
    tab.open(address(gateway, "/unknown"))
    tab.click("p > a[href$='/unknown/all']")
    wait_until(
        lambda: tab.run("document.querySelector('[role=status]')?.textContent ?? ''").startswith("2,300 records"),
        "the count goes on by itself, also without scripts",
        not_yet=(AssertionError,),
    )
    tab.run("document.querySelector('#reason-release').value = 'none was booked'")
    if scripts:
        tab.click("#reason-release ~ button")
        wait_until(
            lambda: "2300 records were released." in tab.run("document.querySelector('.notice')?.textContent ?? ''"),
            "the job goes on by itself",
            not_yet=(AssertionError,),
        )
    else:
        steps = before = 0  # a step ends after a thousand records, or after some seconds
        tab.click("#reason-release ~ button")
        while tab.run("document.querySelector('progress') !== null"):
            steps += 1
            done = tab.run("document.querySelector('progress').value")
            assert before < done < before + 1050
            before = done
            assert f"{done:,} of 2,300 are released." in tab.run("document.querySelector('main').innerText")
            assert fits(tab)
            if steps == 1:
                assert faults(tab, axe) == []
            tab.click("form[data-goes-on] button")
        assert steps >= 2
        assert "2300 records were released." in tab.run("document.querySelector('.notice').textContent")
    assert "None." in tab.run("document.querySelector('main').innerText")
    tab.open(address(gateway, "/audit"))
    assert "records of unknown outcome (until " in tab.run("document.querySelector('tbody').innerText")
    assert tab.wrong() == []
