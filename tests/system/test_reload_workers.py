"""A reload of several workers: in all of them or in none, whichever of them dies, stands still, or can't.

Rules of docs/contract.md: R10.14.
"""

import asyncio
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import httpx

from testing.issuer import Issuer, JwksServer
from testing.waiting import until
from tests.system.reloading import clients, configuration, reloading


async def test_nobody_switches_before_all_are_ready(redis_url: str, tmp_path: Path) -> None:
    """One of two workers stands still: the other one is prepared, and serves as before until that one goes on."""
    async with reloading(tmp_path, redis_url, 2, configuration("a")) as one:
        _, second = one.gateway.workers()
        os.kill(second, signal.SIGSTOP)
        try:
            one.write(configuration("b"))
            os.kill(one.gateway.pid, signal.SIGHUP)
            await until(lambda: "is prepared" in one.gateway.text(), "the first worker is prepared")
            found = set()
            for _ in range(20):
                async with clients(one.gateway.url) as client:
                    with suppress(httpx.TimeoutException):  # taken by the one that stands still
                        client.timeout = httpx.Timeout(1)
                        found.add(await one.pay(client))
            assert found == {"a"}
        finally:
            os.kill(second, signal.SIGCONT)
        assert (await one.over()).startswith("reloaded")
        async with clients(one.gateway.url) as client:
            assert len(await one.serving(client)) == 1
            assert await one.pay(client) == "b"


async def test_a_worker_that_dies_meanwhile_comes_back_with_the_right_one(redis_url: str, tmp_path: Path) -> None:
    """It is killed while the others wait for it: they go on without it, and its successor begins with what they switch to."""
    async with reloading(tmp_path, redis_url, 2, configuration("a")) as one:
        second = await one.half_prepared(configuration("b"))
        os.kill(second, signal.SIGKILL)
        assert (await one.over()).startswith("reloaded")
        await until(lambda: one.gateway.text().count("listening on") >= 3, "another worker listens")
        async with clients(one.gateway.url) as client:
            (count,) = (await one.serving(client)).values()
            assert count == 2
        for _ in range(8):
            async with clients(one.gateway.url) as client:
                assert await one.pay(client) == "b"


async def test_workers_that_are_killed_at_random_come_back_with_the_right_one(redis_url: str, tmp_path: Path) -> None:
    async with reloading(tmp_path, redis_url, 2, configuration("a")) as one:
        for number in range(6):
            one.write(configuration("ba"[number % 2]))
            os.kill(one.gateway.pid, signal.SIGHUP)
            await asyncio.sleep(0.004 * number)  # wherever it is by then: each moment is one to die at
            os.kill(one.gateway.workers()[number % 2], signal.SIGKILL)
            line = await one.over()
            assert line.startswith("reloaded") or "no worker lives" in line
            deaths = number + 1
            await until(lambda: one.gateway.text().count("listening on") >= 2 + deaths, "another worker")  # noqa: B023 - awaited within its round
        if "no worker lives" in one.lines()[-1]:
            await one.reload(configuration("a"))
        async with clients(one.gateway.url) as client:
            (count,) = (await one.serving(client)).values()
            assert count == 2


async def test_a_worker_that_cannot_keeps_all_from_it(redis_url: str, tmp_path: Path) -> None:
    """Of two workers one gets the keys of tokens, and the other one, a moment later, an error."""

    class GoodOnce(JwksServer):
        good = 1

        @property
        def status(self) -> int:
            return 200 if self.fetched <= self.good else 404

        @status.setter
        def status(self, status: int) -> None:
            """It goes by ``good``."""

    with GoodOnce(Issuer().jwks()) as server:
        more = f'scope = ["jwt:sub"]\n[jwt]\njwks = "{server.url}"\n'
        async with reloading(tmp_path, redis_url, 2, configuration("a")) as one:
            line = await one.reload(configuration("b", more))
            assert "jwks: answered 404" in line
            await until(lambda: server.fetched == 2, "both have tried")
            async with clients(one.gateway.url) as client:
                assert await one.pay(client) == "a"
                assert len(await one.serving(client)) == 1
            server.good = 100
            assert (await one.reload(configuration("b", more))).startswith("reloaded")


AN_HOUR_LATER = """
import oncegate.app.reload.parent as parent
now, receive, passed = parent.monotonic, parent.ParentReload._receive, []
def received(self, seconds):
    found = receive(self, seconds)
    passed.extend(found)
    return found
parent.monotonic = lambda: now() + 3600 * bool(passed)
parent.ParentReload._receive = received
"""
"""For the parent an hour passes as soon as the first worker has answered: the other one is late, on a slow machine, too."""


async def test_a_worker_that_answers_nothing_keeps_all_from_it(redis_url: str, tmp_path: Path) -> None:
    """For so long, and no longer; and the next reload is its own."""
    async with reloading(tmp_path, redis_url, 2, configuration("a"), before=AN_HOUR_LATER) as one:
        _, second = one.gateway.workers()
        os.kill(second, signal.SIGSTOP)
        one.write(configuration("b"))
        os.kill(one.gateway.pid, signal.SIGHUP)
        line = await one.over()
        os.kill(second, signal.SIGCONT)
        assert re.search(r"not reloaded, configuration \w+ stays: worker 1 did not answer within", line)
        async with clients(one.gateway.url) as client:
            assert len(await one.serving(client)) == 1
        assert (await one.reload(configuration("b"))).startswith("reloaded")
        async with clients(one.gateway.url) as client:
            assert await one.pay(client) == "b"


IMPATIENT = """
import oncegate.app.reload.link as link
import oncegate.app.reload.parent as parent
link.SEND_SECONDS, keep, second = 60.0, parent.WorkerLinks.keep, [1]
def kept(self, index, process):
    keep(self, index, process)
    if index in second:
        second.remove(index)
        self.by_index[index].channel.settimeout(1.0)
parent.WorkerLinks.keep = kept
"""
"""The parent has little patience with its second worker, not with that one's successor, and much with those that go on."""


async def test_a_worker_that_takes_nothing_is_replaced_and_nobody_switches_before(
    redis_url: str, tmp_path: Path
) -> None:
    """What is sent to it is more than its socket holds, and it stands still."""
    large = configuration("b").replace("header", f"docs_url = 'https://d.example/{'x' * 1_000_000}'\nheader", 1)
    async with reloading(tmp_path, redis_url, 2, configuration("a"), before=IMPATIENT) as one:
        _, second = one.gateway.workers()
        os.kill(second, signal.SIGSTOP)
        one.write(large)
        os.kill(one.gateway.pid, signal.SIGHUP)
        assert "stays: worker 1 takes no message: it is replaced" in await one.over()
        os.kill(second, signal.SIGCONT)
        await until(lambda: one.gateway.text().count("listening on") >= 3, "another worker listens")
        async with clients(one.gateway.url) as client:
            assert await one.pay(client) == "a"
        assert (await one.reload(large)).startswith("reloaded")
        async with clients(one.gateway.url) as client:
            (count,) = (await one.serving(client)).values()
            assert count == 2


async def test_a_stop_does_not_wait_for_a_reload(redis_url: str, tmp_path: Path) -> None:
    """One for which a worker keeps all waiting is given up."""
    async with reloading(tmp_path, redis_url, 2, configuration("a")) as one:
        second = await one.half_prepared(configuration("b"))
        one.gateway.terminate()
        assert (await one.over()).endswith("stays: the gateway is stopping")
        os.kill(second, signal.SIGCONT)
        assert await asyncio.to_thread(one.gateway.exit_code) == 0
