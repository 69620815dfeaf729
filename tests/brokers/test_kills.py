"""Consumers killed at each point of a message's way, and started again: what became of its effect."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from signal import SIGKILL

from testing.template import ROOT, Forked
from tests.brokers.benches import Bench
from tests.brokers.conftest import PRELOADED, recorded, settled
from tests.brokers.consumers import Effects, subscription

WITHIN = 60.0
KILLS = {  # key: where its first consumer dies, whether the handler looks first, the effects
    "before-claim": ("before claim", False, 1),
    "after-claim": ("after claim", False, 1),
    "after-effect": (
        "after effect",
        False,
        2,
    ),  # the window, up to the record; docs/patterns says how a handler closes it
    "after-effect-that-is-looked-for": ("after effect", True, 1),
    "before-succeed": ("before succeed", False, 2),
    "after-succeed": ("after succeed", False, 1),
}


class Restarting:
    """A consumer process that is started again whenever it was killed, as a supervisor does it."""

    def __init__(self, *arguments: str, module: str = "tests.brokers.consumers") -> None:
        self._command = ["-m", module, *arguments]
        self.kills = 0
        self._start()

    def _start(self) -> None:
        self.process = Forked(*self._command, preloaded=PRELOADED, cwd=ROOT, stderr=subprocess.PIPE, text=True)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Keep it going until ``condition`` holds."""
        async with asyncio.timeout(WITHIN):
            while not await condition():
                if self.process.poll() is not None:
                    assert self.process.returncode == -SIGKILL, self.process.communicate()[1]
                    self.process.communicate()
                    self.kills += 1
                    self._start()
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        """Let it finish what it has begun. Raises where it does not end well."""
        self.process.terminate()
        printed = self.process.communicate(timeout=WITHIN)[1]
        assert self.process.returncode == 0, printed

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def consumer(bench: Bench, redis_url: str, effects: Effects) -> Iterator[Restarting]:
    process = Restarting(bench.kind, bench.url, bench.name, redis_url, str(effects.path))
    try:
        yield process
    finally:
        process.end()


async def test_the_effects_of_messages_whose_consumer_is_killed(bench: Bench, redis_url: str, effects: Effects) -> None:
    """One message after the other, so that no kill takes another message's consumer with it."""
    one = subscription(redis_url, bench.name)
    with consumer(bench, redis_url, effects) as process:
        for number, (key, (point, checks, _)) in enumerate(KILLS.items(), 1):
            await bench.publish({"key": key, "die": point, "checks": checks})

            async def done(number: int = number, key: str = key) -> bool:
                again = process.kills == number and effects.deliveries().get(key, 0) >= 2
                return again and await recorded(one, key)

            await process.until(done)
        process.stop()
    await one.cache.close()
    assert effects.count() == {key: expected for key, (_, _, expected) in KILLS.items()}
    await settled(bench)
    assert await bench.dead() == []
