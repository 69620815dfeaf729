"""Two entries of one command that was given up: one dead letter, whichever of them is written first. On a real stream.

Rules of docs/contract.md: R8.6.
"""

from collections.abc import Mapping
from typing import cast
from uuid import uuid4

import pytest

from oncegate import Subscription
from oncegate.app.commands.executor import Confirm
from oncegate.app.commands.processing import Processing
from oncegate.app.commands.submission_life import SubmissionLife
from oncegate.cache.backoff import Backoff
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.commands import run_command, run_command_on, stream_client
from oncegate.cache.redis.streams.group import Group, LetterLimits
from oncegate.cache.redis.streams.stream import Command, CommandStream
from oncegate.middleware.consumers.command_context import CommandContext
from oncegate.middleware.consumers.delivery import SubscriptionSettings
from oncegate.middleware.outcome.responses import now_ms
from tests.app.commands.test_processing import Gated, NoLife

COMMAND = Command("a" * 20 + ":" + "s" * 20, "k", bytes(16), "POST", "/pay", "*", b"{}")


class Failing(Gated):
    """An executor whose commands fail."""

    async def execute(self, command: Command, context: CommandContext, confirm: Confirm) -> StoredResponse:
        raise ValueError("no")


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize("first", ["what was executed", "its copy"])
async def test_two_copies_of_a_command_that_is_given_up_have_one_letter(
    redis_url: str, first: str, earlier: int
) -> None:
    client, reading = (stream_client(redis_url, timeout=60) for _ in range(2))
    stream = CommandStream(client, uuid4().hex, "commands")
    group = Group(stream, reading, "ledger", "w", LetterLimits(10, 86_400_000))
    pauses, settings = Backoff(1.0, 1.0), SubscriptionSettings(attempt_timeout=600, lease=60, max_attempts=1)
    subscription = Subscription("ledger", cache=MemoryCache(), settings=settings)
    processing = Processing(subscription, Failing(), pauses, pauses, "w", cast(SubmissionLife, NoLife()))
    await group.create()
    # The letter of an earlier record of the same command, which died of as many attempts, is not that of this one.
    for _ in range(earlier):
        await letter(
            stream, {b"command": COMMAND.command.encode(), b"dead.consumer": b"ledger", b"dead.attempts": b"1"}
        )
    entries = [await run_command(client, "XADD", stream.key, "*", *parts(COMMAND)) for _ in range(2)]
    await run_command_on(client, stream.key, "XREADGROUP", "GROUP", "ledger", "w", "STREAMS", stream.key, ">")

    dispositions = [await processing.process(entry, COMMAND.fields(), 1) for entry in entries]
    assert [bool(each.death) for each in dispositions] == [True, True]
    ended = list(zip(entries, dispositions, strict=True))
    for entry, each in ended if first == "what was executed" else reversed(ended):
        assert each.death
        assert await group.give_up(entry, each.death, each.copy_of, each.since_ms)
    assert await run_command(client, "XLEN", stream.dead_key) == earlier + 1
    for each in (client, reading):
        await each.close()


def parts(command: Command) -> list[bytes]:
    return [part for pair in command.fields().items() for part in pair]


async def letter(stream: CommandStream, fields: Mapping[bytes, bytes]) -> None:
    """A letter of an hour ago."""
    at = now_ms() - 3_600_000
    written = [part for pair in fields.items() for part in pair]
    await run_command(stream.client, "XADD", stream.dead_key, f"{at}-0", *written, b"dead.at", b"%d" % at)
