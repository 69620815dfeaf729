"""Consumers killed at each point of a message's way, and started again: what became of its effect."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

from tests.brokers.benches import Bench
from tests.brokers.consumers import Effects

ROOT = Path(__file__).parent.parent.parent
WITHIN = 60.0
POINTS = {
    "before claim": 1,
    "after claim": 1,
    "after effect": 2,  # the window, up to the record: docs/patterns says how a handler closes it
    "before succeed": 2,
    "after succeed": 1,
}


class Restarting:
    """A consumer process that is started again whenever it was killed, as a supervisor does it."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "tests.brokers.consumers", *arguments]
        self.kills = 0
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.PIPE, text=True)

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
        said = self.process.communicate(timeout=WITHIN)[1]
        assert self.process.returncode == 0, said

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
    keys = {point: point.replace(" ", "-") for point in POINTS}
    with consumer(bench, redis_url, effects) as process:
        for number, (point, expected) in enumerate(POINTS.items(), 1):
            key = keys[point]
            await bench.publish({"key": key, "die": point})

            async def done(number: int = number, key: str = key, expected: int = expected) -> bool:
                again = effects.deliveries().get(key, 0) >= 2
                return process.kills == number and again and effects.count().get(key, 0) >= expected

            await process.until(done)
        process.stop()
    assert effects.count() == {keys[point]: expected for point, expected in POINTS.items()}
    assert await bench.left() == 0
    assert await bench.dead() == []
