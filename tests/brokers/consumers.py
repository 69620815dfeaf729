"""One consumer per broker, as its users would write it, and processes of it that die where a message says so.

python -m tests.brokers.consumers rabbit URL QUEUE REDIS_URL LEDGER
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from faststream.middlewares import AckPolicy, BaseMiddleware

from oncegate import RedisCache, Subscription, SubscriptionSettings
from oncegate.faststream import SubscriptionMiddleware

LEASE = 1.5
"""Seconds, in the processes that are killed. Short, since what a dead one held is executed again only after it."""
LASTING = 30.0
"""In all others: a machine that stands still for seconds must not end one."""
PATIENCE = 10.0
"""Seconds for Redis to answer, on a busy machine."""

Handler = Callable[[Any], Any]


def rabbit(
    url: str, name: str, middlewares: Sequence[Any], handler: Handler, policy: AckPolicy = AckPolicy.NACK_ON_ERROR
) -> Any:
    from faststream.rabbit import RabbitBroker, RabbitQueue

    broker = RabbitBroker(url, middlewares=middlewares, logger=None)
    queue = RabbitQueue(
        name, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    )
    broker.subscriber(queue, ack_policy=policy)(handler)
    return broker


def nats(
    url: str, name: str, middlewares: Sequence[Any], handler: Handler, policy: AckPolicy = AckPolicy.NACK_ON_ERROR
) -> Any:
    from faststream.nats import JStream, NatsBroker, PullSub
    from nats.js.api import ConsumerConfig

    broker = NatsBroker(url, middlewares=middlewares, logger=None)
    broker.subscriber(
        f"{name}.commands",
        stream=JStream(name),
        durable="consumer",
        pull_sub=PullSub(timeout=0.2),
        config=ConsumerConfig(ack_wait=1),
        ack_policy=policy,
    )(handler)
    return broker


def redis(
    url: str, name: str, middlewares: Sequence[Any], handler: Handler, policy: AckPolicy = AckPolicy.NACK_ON_ERROR
) -> Any:
    from faststream.redis import RedisBroker, StreamSub

    broker = RedisBroker(url, middlewares=middlewares)
    me = os.urandom(4).hex()
    # New entries, and those that somebody else has left: the same handler.
    new = StreamSub(name, group="consumer", consumer=me, polling_interval=20)
    left = StreamSub(name, group="consumer", consumer=me, min_idle_time=300, polling_interval=50)
    broker.subscriber(stream=new, ack_policy=policy)(broker.subscriber(stream=left, ack_policy=policy)(handler))
    return broker


def kafka(
    url: str, name: str, middlewares: Sequence[Any], handler: Handler, policy: AckPolicy = AckPolicy.NACK_ON_ERROR
) -> Any:
    from faststream.kafka import KafkaBroker

    broker = KafkaBroker(url, middlewares=middlewares, logger=None)
    broker.subscriber(name, group_id="consumer", ack_policy=policy)(handler)
    return broker


CONSUMERS: dict[str, Callable[..., Any]] = {"rabbit": rabbit, "nats": nats, "redis": redis, "kafka": kafka}


def subscription(url: str, namespace: str, **settings: Any) -> Subscription:
    return Subscription(
        "billing",
        cache=RedisCache.from_url(url, timeout=PATIENCE),
        namespace=namespace,
        settings=SubscriptionSettings(**{"lease": LASTING} | settings),
    )


def _append(path: Path, key: str) -> None:
    with path.open("a") as lines:
        lines.write(f"{key}\n")


def _count(path: Path) -> dict[str, int]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {key: lines.count(key) for key in sorted(set(lines))}


class Effects:
    """Effects are lines of a file, outside of brokers and caches, that a kill does not take back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._deliveries = path.with_name("deliveries")

    def add(self, key: str) -> None:
        _append(self.path, key)

    def count(self) -> dict[str, int]:
        return _count(self.path)

    def deliver(self, key: str) -> None:
        _append(self._deliveries, key)

    def deliveries(self) -> dict[str, int]:
        return _count(self._deliveries)

    def die_once(self, command: dict[str, Any], point: str) -> None:
        """SIGKILL to this process, if ``command`` says so of this point, the first time that it gets here."""
        mark = self.path.with_name(f"died-{command['key']}")
        if command.get("die") == point and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Killer(BaseMiddleware[Any, Any]):
    """Dies before whatever is inside of it begins, or after it has ended; before FastStream acknowledges, in any case."""

    effects: Effects
    before: str
    after: str
    command: dict[str, Any]

    def arrived(self) -> None:
        """The outer one counts deliveries."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        self.command = json.loads(msg.body)
        self.arrived()
        self.effects.die_once(self.command, self.before)
        return await call_next(msg)

    async def after_processed(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> bool:
        if exc_val is None:
            self.effects.die_once(self.command, self.after)
        return False


async def main(kind: str, url: str, name: str, redis_url: str, ledger: str) -> None:
    effects = Effects(Path(ledger))

    class Outer(Killer):
        before, after = "before claim", "after succeed"

        def arrived(self) -> None:
            effects.deliver(self.command["key"])

    class Inner(Killer):
        before, after = "after claim", "before succeed"

    Killer.effects = effects

    async def handle(command: dict[str, Any]) -> None:
        if not (command.get("checks") and command["key"] in effects.count()):
            effects.add(command["key"])
        effects.die_once(command, "after effect")

    hook = SubscriptionMiddleware(subscription(redis_url, name, lease=LEASE), pause=0.1, max_pause=0.5)
    broker = CONSUMERS[kind](url, name, [Outer, hook, Inner], handle)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await broker.start()
    await ended.wait()
    await broker.stop()  # waits for what is being handled, and its acknowledgement


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
