"""The other side of each broker: what publishes, and what looks at what is left, without FastStream."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import aio_pika
import nats
import redis.asyncio
from nats.js.api import StreamConfig

KEY = "Idempotency-Key"
CORRELATION = "correlation_id"
"""The header, or property, in which FastStream looks for it."""
_IDS = ("message", "correlation", "record")


class Bench:
    """A queue of one broker. Every publication has a fresh broker id."""

    kind: str
    counts_held = True
    """Whether ``left`` counts what a connected consumer holds. If so it is asked for before that consumer leaves: nobody
    is there afterwards to take what a killed one had not acknowledged, and NATS counts a message anew whose negative
    acknowledgement came last.
    """

    def __init__(self, url: str, name: str = "", consumer: str = "consumer") -> None:
        self.url = url
        self.name = name or f"q{uuid4().hex}"
        self.consumer = consumer
        self.published = ""
        """The broker's id of the last message."""
        self.letters: list[str] = []
        """The ids in each dead letter that was seen: message, correlation, and the record's where the letter is ours."""
        self.keys: list[str] = []
        """The idempotency keys in them."""

    async def open(self) -> None:
        """Connect, and make what is published to."""
        raise NotImplementedError

    async def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    async def clear(self) -> None:
        """Delete the queue and what is in it."""
        raise NotImplementedError

    async def rewind(self) -> None:
        """Have everything that was ever published delivered again."""
        raise NotImplementedError

    async def publish(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """One message; its key is the body's, unless ``headers`` say otherwise."""
        await self._publish(json.dumps(body).encode(), {KEY: body["key"]} if headers is None else headers)

    async def _publish(self, body: bytes, headers: dict[str, str]) -> None:
        raise NotImplementedError

    async def litter(self) -> int:
        """Publish what is no command; how many of those no consumer can ever be done with."""
        await self._publish(b"\xff", {})
        return 1

    async def joined(self) -> bool:
        """Whether a consumer gets what is published from now on."""
        return True

    async def dead(self) -> list[dict[str, Any]]:
        """What was dead-lettered so far; once, where a slow machine had it delivered and dead-lettered a second time."""
        raise NotImplementedError

    async def left(self) -> int:
        """How many messages are neither acknowledged nor dead-lettered."""
        raise NotImplementedError


class RabbitBench(Bench):
    kind = "rabbit"
    counts_held = False

    async def open(self) -> None:
        self._connection = await aio_pika.connect(self.url)
        self.channel = await self._connection.channel()
        await self.channel.declare_queue(f"{self.name}.dead", durable=True)
        arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{self.name}.dead"}
        await self.channel.declare_queue(self.name, durable=True, arguments=arguments)
        self._dead: list[dict[str, Any]] = []

    async def close(self) -> None:
        await self._connection.close()

    async def clear(self) -> None:
        await self.channel.queue_delete(self.name)
        await self.channel.queue_delete(f"{self.name}.dead")

    async def _publish(self, body: bytes, headers: dict[str, str]) -> None:
        message = aio_pika.Message(
            body,
            headers=dict(headers),
            message_id=uuid4().hex,
            correlation_id=headers.get(CORRELATION),
            content_type="application/json",
            timestamp=datetime.now(UTC),
        )
        self.published = message.message_id or ""
        await self.channel.default_exchange.publish(message, self.name)

    async def dead(self) -> list[dict[str, Any]]:
        queue = await self.channel.get_queue(f"{self.name}.dead")
        while message := await queue.get(no_ack=True, fail=False):
            self.letters.append(f"{message.message_id} {message.correlation_id}")
            self.keys.append(str(message.headers.get(KEY)))
            self._dead.append(json.loads(message.body))
        return self._dead

    async def left(self) -> int:
        """Those that a consumer holds unacknowledged are counted once it has disconnected."""
        queue = await self.channel.declare_queue(self.name, passive=True)
        return queue.declaration_result.message_count or 0


class NatsBench(Bench):
    kind = "nats"

    async def open(self) -> None:
        self._client = await nats.connect(self.url)
        self._stream = self._client.jetstream()
        await self._stream.add_stream(StreamConfig(name=self.name, subjects=[f"{self.name}.commands"]))
        self._dead: dict[int, dict[str, Any]] = {}

        async def terminated(advisory: Any) -> None:
            sequence = json.loads(advisory.data)["stream_seq"]
            message = await self._stream.get_msg(self.name, sequence)
            self._dead[sequence] = json.loads(message.data or b"{}")
            self.letters.append(f"{self.name}/{message.seq} {(message.headers or {}).get(CORRELATION)}")
            self.keys.append((message.headers or {}).get(KEY, ""))

        await self._client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{self.name}.>", cb=terminated)
        await self._client.flush()

    async def close(self) -> None:
        await self._client.close()

    async def clear(self) -> None:
        await self._stream.delete_stream(self.name)

    async def rewind(self) -> None:
        await self._stream.delete_consumer(self.name, self.consumer)

    async def _publish(self, body: bytes, headers: dict[str, str]) -> None:
        published = await self._stream.publish(f"{self.name}.commands", body, headers=headers)
        self.published = f"{published.stream}/{published.seq}"

    async def dead(self) -> list[dict[str, Any]]:
        return [*self._dead.values()]

    async def left(self) -> int:
        info = await self._stream.consumer_info(self.name, self.consumer)
        return (info.num_ack_pending or 0) + (info.num_pending or 0)


class RedisBench(Bench):
    kind = "redis"

    async def open(self) -> None:
        """Nothing is made: a consumer makes its group."""
        self.client = redis.asyncio.Redis.from_url(self.url)

    async def join(self) -> None:
        """Make the group in the consumer's place."""
        await self.client.xgroup_create(self.name, self.consumer, id="0", mkstream=True)

    async def joined(self) -> bool:
        return bool(await self.client.exists(self.name)) and bool(await self.client.xinfo_groups(self.name))

    async def close(self) -> None:
        await self.client.aclose()

    async def clear(self) -> None:
        await self.client.delete(self.name, f"{self.name}:dead")

    async def rewind(self) -> None:
        await self.client.xgroup_setid(self.name, self.consumer, "0")

    reply_to: str | None = None

    async def _publish(self, body: bytes, headers: dict[str, str]) -> None:
        from faststream.redis.parser import BinaryMessageFormatV1  # what FastStream reads, as its own broker writes it

        data = await BinaryMessageFormatV1.encode(
            message=body, reply_to=self.reply_to, headers=dict(headers), correlation_id=headers.get(CORRELATION, "c")
        )
        entry: Any = await self.client.xadd(self.name, {"__data__": data})
        self.published = f"{self.name}/{entry.decode()}"

    async def litter(self) -> int:
        await self.client.xadd(self.name, {"no": "command"})
        return 1 + await super().litter()

    async def dead(self) -> list[dict[str, Any]]:
        from faststream.redis.parser import BinaryMessageFormatV1

        entries: Any = await self.client.xrange(f"{self.name}:dead")
        parsed = [BinaryMessageFormatV1.parse(fields[b"__data__"]) for _, fields in entries]
        bodies = dict.fromkeys(body for body, _ in parsed)
        self.keys[:] = [headers.get(KEY, "") for _, headers in parsed]
        ids = [[fields[f"oncegate-{name}".encode()].decode() for name in _IDS] for _, fields in entries]
        self.letters[:] = [" ".join(each) for each in ids]
        return [json.loads(body) for body in bodies]

    async def left(self) -> int:
        (group,) = await self.client.xinfo_groups(self.name)
        return int(group["pending"]) + int(group["lag"] or 0)


LITTER: list[dict[Any, Any]] = [
    {"no": "command"},
    {"key": "no-body"},
    {"body": "no key"},
    {"key": b"\xff", "body": "no text"},
]


class PlainRedisBench(RedisBench):
    """Entries with two fields of their own, as without FastStream."""

    async def _publish(self, body: bytes, headers: dict[str, str]) -> None:
        await self.client.xadd(self.name, {"key": headers[KEY], "body": body})

    async def litter(self) -> int:
        for fields in LITTER:
            await self.client.xadd(self.name, dict(fields))
        return 0

    async def reasons(self) -> set[tuple[bytes, bytes]]:
        """Whose dead letters say what."""
        entries: Any = await self.client.xrange(f"{self.name}:dead")
        return {(fields.get(b"key", b""), fields[b"reason"]) for _, fields in entries}

    async def dead(self) -> list[dict[str, Any]]:
        entries: Any = await self.client.xrange(f"{self.name}:dead")
        bodies = dict.fromkeys(fields.get(b"body", b"") for _, fields in entries)
        return [json.loads(body) for body in bodies if body.startswith(b"{")]


class RabbitRequests(RabbitBench):
    """Messages whose handler's reply is wanted, and what came."""

    async def open(self) -> None:
        await super().open()
        self._came: list[str] = []
        await self.channel.declare_queue(f"{self.name}.replies", durable=True)

    async def _publish(self, body: bytes, headers: dict[str, str]) -> None:
        message = aio_pika.Message(body, headers=dict(headers), reply_to=f"{self.name}.replies", correlation_id="c")
        await self.channel.default_exchange.publish(message, self.name)

    async def replies(self) -> list[str]:
        """Those that came so far."""
        queue = await self.channel.get_queue(f"{self.name}.replies")
        while message := await queue.get(no_ack=True, fail=False):
            self._came.append(message.body.decode())
        return self._came


class NatsRequests(NatsBench):
    """The same: FastStream reads the subject of a reply from a header there."""

    async def open(self) -> None:
        await super().open()
        await self._stream.add_stream(StreamConfig(name=f"{self.name}-replies", subjects=[f"{self.name}.replies"]))

    async def _publish(self, body: bytes, headers: dict[str, str]) -> None:
        await super()._publish(body, {**headers, "reply_to": f"{self.name}.replies"})

    async def replies(self) -> list[str]:
        """Those that came so far."""
        count = (await self._stream.stream_info(f"{self.name}-replies")).state.messages
        came = [await self._stream.get_msg(f"{self.name}-replies", number + 1) for number in range(count)]
        return [(message.data or b"").decode() for message in came]


class RedisRequests(RedisBench):
    """The same: a reply goes to whoever is subscribed to a channel."""

    async def open(self) -> None:
        await super().open()
        await self.join()
        self.reply_to = f"{self.name}.replies"
        self._came: list[str] = []
        self._subscribed = self.client.pubsub(ignore_subscribe_messages=True)
        await self._subscribed.subscribe(self.reply_to)
        await self._subscribed.get_message(timeout=60)  # of the subscription, which is ignored

    async def close(self) -> None:
        await self._subscribed.aclose()  # type: ignore[no-untyped-call]  # as the client has it
        await super().close()

    async def replies(self) -> list[str]:
        """Those that came so far."""
        from faststream.redis.parser import BinaryMessageFormatV1

        while message := await self._subscribed.get_message(timeout=0.1):
            self._came.append(BinaryMessageFormatV1.parse(message["data"])[0].decode())
        return self._came


REQUESTS = {"rabbit": RabbitRequests, "nats": NatsRequests, "redis": RedisRequests}
BENCHES = {bench.kind: bench for bench in (RabbitBench, NatsBench, RedisBench)}
