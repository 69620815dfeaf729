"""Message id, correlation id and record id: on every line of the hook's log, and in the dead letter, under each real broker.

Rules of docs/contract.md: R12.40.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from oncegate.middleware.consumers.begun import Begun
from testing.command_line import invoke
from testing.waiting import until
from tests.brokers.benches import CORRELATION, KEY, Bench, RedisBench
from tests.brokers.conftest import Consumers


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What oncegate has logged about records."""
    found = [each.getMessage() for each in caplog.records if each.name.startswith("oncegate.")]
    return [line for line in found if line.startswith("record ")]


async def test_ids_are_on_each_line_and_in_the_dead_letter(
    bench: Bench, consumers: Consumers, caplog: pytest.LogCaptureFixture, database: Path
) -> None:
    caplog.set_level(logging.INFO, "oncegate")
    decided: list[Begun] = []

    async def handle(command: dict[str, Any]) -> None:
        raise ValueError("no such account")

    await consumers.start(handle, on_begun=decided.append, max_attempts=2)
    await until(bench.joined)
    await bench.publish({"key": "order-7"}, {KEY: "order-7", CORRELATION: "c-17"})
    await until(lambda: bench.letters or dead(bench))
    record = decided[0].record
    found = lines(caplog)
    failures = [line.partition(": ")[2] for line in found if "failed: ValueError" in line]
    assert set(failures) == {f"attempt {number} failed: ValueError" for number in (1, 2)}
    assert any("dead-lettered as failed" in line for line in found)
    assert {line.partition(": ")[0] for line in found} == {
        f"record {record}, message {bench.published}, correlation c-17"
    }
    assert bench.letters[0] == f"{bench.published} c-17" + (f" {record}" if isinstance(bench, RedisBench) else "")
    shown = await asyncio.to_thread(invoke, "inbox", "show", bench.keys[0], "--database", f"sqlite:///{database}")
    assert f"record {record}: no marker" in shown.stderr  # whoever has the letter finds the record by its key


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """With an inbox."""
    path = tmp_path / "app.db"
    assert invoke("inbox", "create", "--database", f"sqlite:///{path}").returncode == 0
    return path


async def test_a_letter_of_one_s_own_may_name_the_record(bench: Bench, consumers: Consumers) -> None:
    """By `dead_letter`, which is awaited before the broker puts the message aside: with the broker's own client."""
    decided: list[Begun] = []
    letters: list[tuple[str, str]] = []

    async def put_aside(message: Any, begun: Begun) -> None:
        letters.append((begun.record, begun.origin.message_id))

    async def handle(command: dict[str, Any]) -> None:
        raise ValueError("no such account")

    await consumers.start(handle, on_begun=decided.append, max_attempts=1, dead_letter=put_aside)
    await until(bench.joined)
    await bench.publish({"key": "order-7"})
    await until(lambda: letters)
    assert letters[0] == (decided[0].record, bench.published)


async def dead(bench: Bench) -> list[dict[str, Any]]:
    return await bench.dead()


async def test_a_message_without_a_usable_key_is_named_by_its_own_ids(
    bench: Bench, consumers: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(command: dict[str, Any]) -> None:
        raise AssertionError("never called")

    await consumers.start(handle, on_missing_key="reject")
    await until(bench.joined)
    await bench.publish({"key": "none"}, {CORRELATION: "c-18"})
    await until(lambda: dead(bench))
    assert [line for line in lines(caplog) if "dead-lettered as rejected" in line] == [
        f"record -, message {bench.published}, correlation c-18: dead-lettered as rejected, attempt 0"
    ]
