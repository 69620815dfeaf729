"""The consumers that docs/brokers.md shows, as processes: killed, started again, and sent the same command once more."""

import asyncio
import importlib.util
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from faststream.kafka import TestKafkaBroker

from testing import pages
from testing.servers import RedisServer
from testing.template import Forked
from testing.waiting import until
from tests.brokers.benches import KEY, Bench, NatsBench, PlainRedisBench, RabbitBench, RedisBench
from tests.brokers.conftest import PRELOADED, WITHIN, recorded, settled
from tests.brokers.consumers import subscription

PAGE = Path(__file__).parent.parent.parent / "docs" / "brokers.md"
EXAMPLES: dict[str, type[Bench]] = {
    "rabbit_consumer.py": RabbitBench,
    "inbox_consumer.py": RabbitBench,
    "nats_consumer.py": NatsBench,
    "redis_consumer.py": RedisBench,
    "plain_rabbit.py": RabbitBench,
    "plain_redis.py": PlainRedisBench,
}
NAMES = {"plain_redis.py": "payments:messages"}
"""Of the queue, where it is not ``payments``."""
PORTS = {"redis": "6379", "rabbit": "5672", "nats": "4222"}
AS_SCRIPT = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
URL = re.compile(r"\w+://[\w:@.]+:(6379|5672|4222)(?:/0?)?")


def blocks() -> dict[str, str]:
    found = {}
    for kind, block in pages.BLOCK.findall(PAGE.read_text("utf-8")):
        name = pages.FILE.match(block)
        assert name or kind == "text", block
        if name:
            found[name[1]] = block
    return found


@pytest.fixture
def urls(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Where the page's ports are, in truth. Records and messages share a Redis there, as in the page; nothing is in it yet."""
    with RedisServer() as server:
        shared = {
            port: request.getfixturevalue(f"{kind}_broker_url") for kind, port in PORTS.items() if kind != "redis"
        }
        yield shared | {PORTS["redis"]: server.url}


@pytest.fixture
async def example(request: pytest.FixtureRequest, urls: dict[str, str], tmp_path: Path) -> AsyncIterator[Any]:
    """One of the page's files, and a queue as it expects it, without what an example before it has left."""
    name: str = request.param
    text = blocks()[name].replace("///shop.db", f"///{tmp_path}/shop.db")
    (tmp_path / name).write_text(URL.sub(lambda found: urls[found[1]], text))
    kind = EXAMPLES[name]
    bench = kind(urls[PORTS[kind.kind]], NAMES.get(name, "payments"), "billing")
    await bench.open()
    if isinstance(bench, RabbitBench):  # who copies an example has what it declares, and no more
        await bench.channel.queue_delete(f"{bench.name}.dead")
    yield tmp_path / name, bench
    await bench.clear()
    await bench.close()


class Shown:
    """An example as a process, and what it and the one before it have printed."""

    def __init__(self, file: Path) -> None:
        self._printed = file.with_suffix(".out")
        with self._printed.open("a") as out:
            # Its folder is where it would be: first of those from which is imported.
            self.process = Forked(
                "-c", AS_SCRIPT, str(file), preloaded=PRELOADED, cwd=file.parent, stdout=out, stderr=out
            )

    def paid(self, key: str) -> int:
        printed = self._printed.read_text()
        assert self.process.poll() is None, printed
        return sum(line.startswith("paid ") and key in line for line in printed.splitlines())

    def text(self) -> str:
        return self._printed.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self._printed.read_text()


@pytest.mark.parametrize("example", [*EXAMPLES], indirect=True)
async def test_an_example_runs_each_command_once(example: Any, urls: dict[str, str]) -> None:
    file, bench = example
    one = subscription(urls["6379"], "payments")  # the page's, under the same names
    first = Shown(file)
    second: Shown | None = None
    lasting = 0
    try:
        await until(bench.joined)
        lasting = await bench.litter()
        await bench.publish({"key": f"{file.stem}-one"})
        # Killed earlier than that, it would leave a lease of 30 s to be waited for.
        await until(lambda: recorded(one, f"{file.stem}-one"))
        assert first.paid("one") == 1
        first.kill()
        await bench.publish({"key": f"{file.stem}-one"})
        await bench.publish({"key": f"{file.stem}-one", "amount": 500}, {KEY: f"{file.stem}-one"})
        await bench.publish({"key": f"{file.stem}-two"})
        second = Shown(file)
        await until(lambda: second and second.paid("two") == 1)
        await until(bench.dead)
        assert second.paid("one") == 1
        if bench.counts_held:
            await settled(bench, lasting)
        second.stop()
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
        await one.cache.close()
    assert await bench.dead() == [{"key": f"{file.stem}-one", "amount": 500}]
    if not bench.counts_held:
        await settled(bench, lasting)
    if isinstance(bench, PlainRedisBench):
        assert await bench.reasons() == {
            (f"{file.stem}-one".encode(), b"The key was used for another payload."),
            (b"", b"The entry has no body."),
            (b"no-body", b"The entry has no body."),
            (b"", b"The message has no idempotency key, and the consumer takes none without."),
            (b"\xff", b"The key is given as bytes that are no UTF-8."),
        }


@pytest.mark.parametrize("example", ["plain_redis.py"], indirect=True)
async def test_a_failure_is_dead_lettered_with_its_error_and_what_was_published_first_is_processed(
    example: Any,
) -> None:
    file, bench = example
    client = bench.client
    for caller in ("alice", "bob"):
        await client.xadd(bench.name, {"key": "theirs", "body": f"theirs, by {caller}", "caller": caller})
    await client.xadd(bench.name, {"key": "broken", "body": b"\xff"})
    shown = Shown(file)
    try:
        await until(lambda: shown.paid("theirs") == 2)

        async def is_dead() -> bool:
            return any(
                key == b"broken" and b"can't decode byte 0xff" in reason for key, reason in await bench.reasons()
            )

        await until(is_dead)
        await settled(bench)
        # Two callers of a gateway may have one key, and what tells them apart is not in these fields.
        await client.xadd(bench.name, {"v": "1", "command": "k:s", "key": "theirs", "body": "theirs, by carol"})
        assert await asyncio.to_thread(shown.process.wait, WITHIN) == 1
        assert "use oncegate worker" in shown.text()
        assert "carol" not in shown.text()
    finally:
        shown.kill()


async def test_the_example_of_kafka_in_the_test_broker(
    urls: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kafka_consumer.py"
    file.write_text(URL.sub(lambda found: urls[found[1]], blocks()[file.name]))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec
    assert spec.loader
    shown: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shown)
    aside: list[Any] = []
    async with TestKafkaBroker(shown.broker) as broker:
        publish = broker.publish

        async def noted(body: Any, topic: str, **options: Any) -> Any:
            if topic == "payments.dead":
                aside.append(options["headers"]["oncegate-reason"])
            return await publish(body, topic, **options)

        monkeypatch.setattr(broker, "publish", noted)
        for amount in (5, 5, 500):
            await broker.publish({"key": "kafka", "amount": amount}, "payments", headers={KEY: "kafka"})
    await shown.cache.close()
    assert capsys.readouterr().out == "paid kafka\n"
    assert aside == ["The key was used for another payload."]


def test_every_consumer_of_the_page_runs() -> None:
    assert set(blocks()) == {*EXAMPLES, "kafka_consumer.py"}
