"""Publishes a message and waits for the broker's confirmation: by a broker of FastStream's, or on a stream of Redis.

What a broker raises is read by the names of its classes: none of them is imported.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from oncegate.middleware.consumers.sql_interface import CacheRefused, CacheUnavailable, run_command, stream_client
from oncegate.sql.outbox.sources.source import OutboxMessage

Publish = Callable[[OutboxMessage], Awaitable[object]]
"""Returns when the broker has confirmed the message; what it raises says that it was refused, or that the broker is away."""

_AWAY: Final = ("Connection", "Timeout", "ChannelInvalidState", "NoServers", "BusyLoading", "Disconnect")


class Refused(Exception):
    """The broker has refused a message; the text is one line."""


def is_away(error: BaseException) -> bool:
    """Whether the broker could not be reached, so that it is no message's fault."""
    if isinstance(error, OSError | CacheUnavailable):  # TimeoutError is one
        return not isinstance(error, CacheRefused)
    return any(word in kind.__name__ for kind in type(error).__mro__ for word in _AWAY)


def by_broker(broker: Any) -> Publish:
    """The function that publishes by a broker of FastStream's, which is connected where it isn't yet; its consumers don't start.

    Raises ``TypeError`` for what is none that confirms.
    """
    kind = _kind_of(broker)
    if kind not in _BY or not hasattr(broker, "publish"):
        raise TypeError(
            f"the broker is a {type(broker).__name__}: give one of FastStream's for RabbitMQ, NATS, Redis or Kafka"
        )
    return _BY[kind](broker)


def _kind_of(broker: Any) -> str:
    """Also where it is a user's subclass."""
    modules = [kind.__module__.split(".") for kind in type(broker).__mro__]
    return next((parts[1] for parts in modules if parts[0] == "faststream" and parts[1:2] != ["_internal"]), "")


class _Broker:
    """The base of the brokers: connects at the first message, once."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._connecting = asyncio.Lock()
        self._is_connected = False

    async def __call__(self, message: OutboxMessage) -> None:
        """Publish one, and wait until it is confirmed."""
        if not self._is_connected:
            async with self._connecting:
                await self._broker.connect()  # which does nothing the second time
                self._is_connected = True
        await self._send(message)

    async def _send(self, message: OutboxMessage) -> None:
        raise NotImplementedError

    def _options(self, message: OutboxMessage) -> dict[str, Any]:
        return {"headers": message.stamped(), "correlation_id": message.correlation or None}


class _Rabbit(_Broker):
    """RabbitMQ: to the queue that the topic names."""

    async def _send(self, message: OutboxMessage) -> None:
        content_type = next((value for name, value in message.headers.items() if name.lower() == "content-type"), None)
        confirmation = await self._broker.publish(
            message.body,
            message.topic,
            message_id=message.key,
            persist=True,
            mandatory=True,
            content_type=content_type,
            **self._options(message),
        )
        if confirmation is None:
            raise Refused("the channel has no confirmations")
        if type(confirmation).__name__ != "Ack":
            raise Refused("it has no queue for this topic")


class _Nats(_Broker):
    """NATS: to a subject that a stream of JetStream has. Core NATS confirms nothing."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        self._streams: dict[str, str] = {}

    async def _send(self, message: OutboxMessage) -> None:
        stream = self._streams.get(message.topic)
        if stream is None:
            jetstream = self._broker.config.connection_state.stream
            stream = self._streams[message.topic] = await jetstream.find_stream_name_by_subject(message.topic)
        options = self._options(message)
        options["headers"]["Nats-Msg-Id"] = message.key
        try:
            await self._broker.publish(message.body, message.topic, stream=stream, **options)
        except BaseException:
            self._streams.pop(message.topic, None)  # it may have another one by now
            raise


class _Redis(_Broker):
    """Redis: to the stream that the topic names, in FastStream's form."""

    async def _send(self, message: OutboxMessage) -> None:
        await self._broker.publish(message.body, stream=message.topic, **self._options(message))


class _Kafka(_Broker):
    """Kafka: to a topic, with the aggregate as its key: one partition has all of an aggregate."""

    async def _send(self, message: OutboxMessage) -> None:
        key = message.aggregate.encode() or None
        await self._broker.publish(message.body, message.topic, key=key, **self._options(message))


_BY: Final[dict[str, type[_Broker]]] = {"rabbit": _Rabbit, "nats": _Nats, "redis": _Redis, "kafka": _Kafka}


class RedisStreams:
    """The streams of a Redis by its URL; entries as docs/outbox.md has them. To be closed with `close`."""

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        self._client = stream_client(url, timeout=timeout)

    async def __call__(self, message: OutboxMessage) -> None:
        """Append one entry."""
        fields: dict[str, str | bytes] = {"key": message.key, "body": message.body}
        if message.aggregate:
            fields["aggregate"] = message.aggregate
        if message.sequence is not None:
            fields["sequence"] = str(message.sequence)
        if message.correlation:
            fields["correlation"] = message.correlation
        if message.headers:
            fields["headers"] = orjson.dumps(dict(message.headers))
        await run_command(self._client, "XADD", message.topic, "*", *[part for pair in fields.items() for part in pair])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
