"""What a backup of Redis brings back, and what it forgets: each line of docs/operations.md about it.

Rules of docs/contract.md: R1.8.
"""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncegate.cache.redis.streams.stream import stream_key
from testing.caller import Caller, fresh_key, is_replay, slug, until_answer
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.versions import Versions


class BackedUp(RedisServer):
    """A Redis of which there is one backup."""

    def back_up(self) -> None:
        self.command("SAVE")
        shutil.copy(self._folder / "dump.rdb", self._folder / "backup.rdb")

    def restore(self) -> None:
        """All that came after the backup is gone."""
        self.stop()
        shutil.copy(self._folder / "backup.rdb", self._folder / "dump.rdb")
        self.start()


@pytest.fixture
def server() -> Iterator[BackedUp]:
    with BackedUp() as running:
        yield running


async def test_what_came_after_the_backup_is_executed_again_and_nothing_else(
    server: BackedUp, ledger: Ledger, caller: Caller, tmp_path: Path
) -> None:
    done, running, failed, later, accepted, taken_out, lost = (fresh_key() for _ in range(7))
    ledger.answer(failed, Reply(500), Reply(201))
    with ExitStack() as stack, ledger.gate() as gate:
        versions = Versions(stack, ledger, server, tmp_path)
        ledger.answer(running, Reply(gate=gate))
        gateway = versions.gateway().ready()
        first = await caller.post(gateway, done)
        assert (await caller.post(gateway, failed)).status_code == 500
        assert (await caller.post(gateway, accepted, "/reports")).status_code == 202
        entry = (await caller.post(gateway, taken_out, "/reports")).json()["position"]
        task = caller.send(gateway, running)
        await until(lambda: ledger.arrivals(running), "the attempt runs")
        server.back_up()

        gate.open()
        assert (await task).status_code == 201
        assert (await caller.post(gateway, failed)).status_code == 201
        assert (await caller.post(gateway, later)).status_code == 201
        assert (await caller.post(gateway, lost, "/reports")).status_code == 202
        await asyncio.to_thread(versions.worker)
        await until(lambda: all(map(ledger.arrivals, (accepted, taken_out, lost))), "the commands are processed")
        stack.close()
        keys = (done, running, failed, later, accepted, lost)
        assert [len(ledger.arrivals(key)) for key in keys] == [1, 1, 2, 1, 1, 1]

        server.restore()
        (record,) = [
            key for key in server.command("KEYS", f"{versions.namespace}:*") if server.command("GET", key)[1:2] == b"I"
        ]
        server.command("PEXPIRE", record, 3_600_000 - 1)  # as if the lease of the one in flight were over
        gateway = versions.gateway().ready()
        retry = await caller.post(gateway, done)
        assert (retry.content, is_replay(retry)) == (first.content, True)
        assert slug(await caller.post(gateway, running)) == "outcome-unknown"
        assert is_replay(await caller.post(gateway, accepted, "/reports"))
        assert [len(ledger.arrivals(key)) for key in (done, running, accepted)] == [1, 1, 1]
        for key in (failed, later):  # which is what it costs
            assert not is_replay(await caller.post(gateway, key))
        assert [len(ledger.arrivals(key)) for key in (failed, later)] == [3, 2]

        # An operator has compared the stream with the service's books, and has taken out what was done.
        assert server.command("XDEL", stream_key(versions.namespace, "commands"), entry) == 1
        await asyncio.to_thread(versions.worker)
        await until(
            lambda: len(ledger.arrivals(accepted)) == 2, "what was processed after the backup is processed again"
        )
        assert not is_replay(await caller.post(gateway, lost, "/reports"))
        await until(lambda: len(ledger.arrivals(lost)) == 2, "what was accepted after it is a new command")
        assert len(ledger.arrivals(taken_out)) == 1


async def test_while_redis_is_away_nothing_is_executed_so_that_callers_can_be_waited_for(
    server: BackedUp, ledger: Ledger, caller: Caller, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        versions = Versions(stack, ledger, server, tmp_path)
        gateway = versions.gateway().ready()
        server.back_up()
        key = fresh_key()
        assert (await caller.post(gateway, key)).status_code == 201
        server.stop()
        refused = await until_answer(lambda: caller.post(gateway, key), "cache-unavailable")
        assert refused.headers["retry-after"]
        assert len(ledger.arrivals(key)) == 1
