"""A file of records: who may read it, what is refused, and what becomes of it under forks, locks, clocks and full disks.

Rules of docs/contract.md: R12.61, R12.63, R12.64, R12.65, R12.66, R12.67.
"""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import pytest

from oncegate.cache.errors import CacheFull, CacheUnavailable, CacheUnsupported
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.cache.sql.rows import Reply, Step
from oncegate.cache.sql.sqlite import file as module
from oncegate.cache.sql.sqlite.clock import SteadyClock
from oncegate.cache.sql.sqlite.file import SqliteFile
from oncegate.cache.sql.sqlite.rows import SqliteRows
from oncegate.cache.sql.sqlite.schema import SCHEMA, SqliteAddress, remote_file_system
from oncegate.cache.sql.store import SqlCache
from testing.waiting import until
from tests.cache.sql.inside import connection_of, file_in, has_room_until, is_quiet, line_of

PRINT = b"p" * 16
RESPONSE = StoredResponse(201, ((b"content-type", b"text/plain"),), b"done", 1_700_000_000_000)
MANY_MS = 600_000


@asynccontextmanager
async def opened(path: Path, timeout: float = 30, options: str = "") -> AsyncIterator[SqlCache]:
    cache = SqlCache.from_url(f"sqlite:///{path}{options}", timeout=timeout)
    await cache.check()
    yield cache
    await cache.close()


async def claim(cache: SqlCache, key: str, *, lease_ms: int = MANY_MS, retry: bool = False) -> Claim:
    takeover = frozenset({State.FAILED, State.UNKNOWN}) if retry else frozenset[State]()
    return await cache.claim(key, ClaimRequest(os.urandom(16), PRINT, lease_ms, MANY_MS, takeover))


async def complete(cache: SqlCache, key: str, won: Claim, ttl_ms: int = MANY_MS) -> bool:
    outcome = Record(State.SUCCEEDED, won.record.token, PRINT, won.record.attempt, RESPONSE)
    return await cache.complete(key, outcome, ttl_ms=ttl_ms)


async def succeeded(cache: SqlCache, key: str) -> None:
    assert await complete(cache, key, await claim(cache, key))


# -- who may read it, and what is refused ------------------------------------------------------------------------------


async def test_the_file_and_what_is_beside_it_are_their_owners_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "records.db") as cache:
        await succeeded(cache, "a:key")
        names = ("records.db", "records.db-wal", "records.db-shm")
        modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in names}  # noqa: PTH116 - asyncio's own rule
        assert modes == dict.fromkeys(names, 0o600)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sqlite://records.db", "three slashes"),
        ("sqlite:///", "path of a file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///a.db?durability=none", "durability is disk"),
        ("sqlite:///a.db?mode=ro", "one option"),
        ("postgresql://u@h/d?prepare=never", "prepare is on"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SqlCache.from_url(url)


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        connection.execute("PRAGMA application_id = 1869505381")
        connection.execute("CREATE TABLE records (key)")


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users (name)")


def _no_database(path: Path) -> None:
    path.write_bytes(b"x" * 8192)


UNUSABLE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a folder": (Path.mkdir, "is a folder"),
    "no database": (_no_database, "damaged"),
    "newer": (_newer, "newer oncegate"),
    "another program's": (_foreign, "another program's"),
}


@pytest.mark.parametrize("name", UNUSABLE)
async def test_a_file_that_cannot_hold_records_is_refused_by_the_check(tmp_path: Path, name: str) -> None:
    make, reason = UNUSABLE[name]
    path = tmp_path / "records.db"
    make(path)
    cache = SqlCache.from_url(f"sqlite:///{path}")
    with pytest.raises(CacheUnsupported, match=reason):
        await cache.check()
    with pytest.raises(CacheUnavailable, match=reason):
        await claim(cache, "a:key")
    await cache.close()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    cache = SqlCache.from_url(f"sqlite:///{tmp_path}/none/records.db")
    with pytest.raises(CacheUnsupported, match=r"none is no folder: make it.*sqlite:////"):
        await cache.check()
    await cache.close()


def test_a_network_file_system_is_known(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\nserver:/x /srv/re\\040mote nfs4 rw 0 0\n/dev/b /srv/re\\040mote/local xfs rw 0 0\n"
    )
    assert remote_file_system(Path("/srv/re mote/records.db"), str(mounts)) == "nfs4"
    assert remote_file_system(Path("/srv/re mote/local/records.db"), str(mounts)) == ""
    assert remote_file_system(Path("/var/records.db"), str(mounts)) == ""


@pytest.mark.parametrize(("options", "level"), [("", 2), ("?durability=disk", 2), ("?durability=process", 1)])
async def test_a_commit_is_as_durable_as_was_said(tmp_path: Path, options: str, level: int) -> None:
    file = SqliteFile(SqliteAddress(f"sqlite:///{tmp_path}/records.db{options}"), 30, SteadyClock())
    cache = SqlCache(lambda loop: SqliteRows(file, loop, 30), timeout=30, closed=file.close)
    await cache.check()
    assert connection_of(file).execute("PRAGMA synchronous").fetchone() == (level,)
    await cache.close()


# -- locks -------------------------------------------------------------------------------------------------------------

STOPPED_IN_COMMIT = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE clock SET instant_ms = instant_ms")
print("holds", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
connection.execute("COMMIT")
"""


async def test_while_a_process_is_stopped_within_a_commit_replays_go_on_and_new_keys_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "records.db"
    async with opened(path, timeout=0.5) as cache:
        await succeeded(cache, "a:key")
        command = [sys.executable, "-c", STOPPED_IN_COMMIT, str(path)]
        holder = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == b"holds\n"
        refused = asyncio.ensure_future(claim(cache, "b:key"))
        for _ in range(50):
            replay = await claim(cache, "a:key")
            assert (replay.won, replay.record.response) == (False, RESPONSE)
        assert (await cache.get("a:key")) is not None
        with pytest.raises(CacheUnavailable):
            await refused
        holder.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(holder.wait, 60) == 0
        holder.stdout.close()
        line = line_of(cache)
        await until(lambda: is_quiet(line))
        # What was given up on was not made after all.
        assert (await claim(cache, "b:key")).record.attempt == 1


async def test_an_answer_comes_after_the_commit(tmp_path: Path) -> None:
    """Whoever has it finds it by another connection."""
    path = tmp_path / "records.db"
    async with opened(path) as cache:
        for number in range(20):
            await claim(cache, f"a:{number}")
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("SELECT 1 FROM records WHERE key = ?", (f"a:{number}",)).fetchone()


async def test_what_waits_goes_together(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    async with opened(path) as cache:
        await claim(cache, "warm:key")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            claims = [asyncio.ensure_future(claim(cache, f"a:{number}")) for number in range(100)]
            await asyncio.sleep(0.05)
            before = connection.execute("PRAGMA data_version").fetchone()
            connection.execute("COMMIT")
            await asyncio.gather(*claims)
            assert connection.execute("PRAGMA data_version").fetchone() != before
            assert (
                connection.execute("SELECT count(DISTINCT ends_ms) FROM records WHERE key LIKE 'a:%'").fetchone()[0]
                <= 3
            )


async def test_what_is_more_than_one_commit_takes_follows_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SWAPS", 3)
    monkeypatch.setattr(module, "_IDLE", 3600.0)
    async with opened(tmp_path / "records.db") as cache:
        won = await asyncio.gather(*(claim(cache, f"a:{number}") for number in range(20)))
        assert all(each.won for each in won)


async def test_a_claim_whose_caller_is_cancelled_just_when_it_is_won_is_given_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "records.db") as cache:
        await succeeded(cache, "a:key")
        line = line_of(cache)
        task = asyncio.create_task(claim(cache, "b:key"))
        put = line.rows.put

        def cancelled_behind(step: Step, then: Callable[[Reply], None]) -> None:
            def both(reply: Reply) -> None:
                then(reply)
                task.cancel()

            line.rows.put = put  # type: ignore[method-assign]  # replaced for the length of a test
            put(step, both)

        line.rows.put = cancelled_behind  # type: ignore[method-assign]  # replaced for the length of a test
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await claim(cache, "b:key")).won


async def test_what_a_caller_makes_of_its_answer_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "records.db") as cache:

        def failing(_: Claim | Exception) -> None:
            raise RuntimeError("it is the caller's")

        request = ClaimRequest(os.urandom(16), PRINT, MANY_MS, MANY_MS)
        loop = asyncio.get_running_loop()
        cache.start_claim("a:key", request, loop=loop, adopt=None, then=failing)
        assert not (await claim(cache, "a:key")).won
        assert "it is the caller's" in caplog.text


async def test_nothing_is_left_open_where_a_call_is_under_way_at_the_close(tmp_path: Path) -> None:
    cache = SqlCache.from_url(f"sqlite:///{tmp_path}/records.db", timeout=30)
    pending = [asyncio.create_task(claim(cache, f"a:{number}")) for number in range(50)]
    await asyncio.sleep(0)
    await cache.close()
    answers = await asyncio.gather(*pending, return_exceptions=True)
    assert all(isinstance(answer, Claim | CacheUnavailable) for answer in answers)
    await until(lambda: not [thread for thread in threading.enumerate() if thread.name == "oncegate-sqlite"])
    assert (await claim(cache, "b:key")).won  # it connects again
    await cache.close()


# -- forks -------------------------------------------------------------------------------------------------------------

FORKED = """
import asyncio, os, sys
from oncegate.cache.record import ClaimRequest
from oncegate.cache.sql.rows import Reply, Step
from oncegate.cache.sql.sqlite import file as module
from oncegate.cache.sql.store import SqlCache

cache = SqlCache.from_url(f"sqlite:///{sys.argv[1]}", timeout=30)
loop = asyncio.new_event_loop()

async def won(key):
    return (await cache.claim(key, ClaimRequest(os.urandom(16), b"p" * 16, 60000, 60000))).won

def connections():
    return [each for file in module._files for each in (file._connection, *file.readers) if each is not None]

assert loop.run_until_complete(won("a:key")) and not loop.run_until_complete(won("a:key"))
inherited = connections()
assert len(inherited) == 2
child = os.fork()
if child == 0:
    own = asyncio.new_event_loop()
    assert not own.run_until_complete(won("a:key")) and own.run_until_complete(won("b:key"))
    assert not any(each is other for each in connections() for other in inherited)
    own.run_until_complete(cache.close())
    for each in inherited:
        each.execute("SELECT 1")  # closed by nobody
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert not loop.run_until_complete(won("b:key")) and loop.run_until_complete(won("c:key"))
assert all(any(each is other for each in connections()) for other in inherited)
loop.run_until_complete(cache.close())
"""


def test_no_connection_crosses_a_fork(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "records.db")], capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_clock_never_goes_back_and_never_stands_still() -> None:
    wall, steady = [1000.0], [0.0]
    clock = SteadyClock(lambda: wall[0], lambda: steady[0])
    assert clock.now_ms() == 1_000_000
    wall[0], steady[0] = 900.0, 1.0
    assert clock.now_ms() == 1_001_000
    steady[0] = 2.5
    assert clock.now_ms() == 1_002_500
    wall[0] = 2000.0
    assert clock.now_ms() == 2_000_000
    assert clock.now_after(3_000_000) == 3_000_000
    assert clock.now_after(2_500_000) == 3_000_000


async def test_a_process_whose_clock_is_behind_goes_by_the_file(tmp_path: Path) -> None:
    """The clock was set back between two starts: what was over stays over."""

    def cache_at(seconds: float) -> SqlCache:
        clock = SteadyClock(lambda: seconds, lambda: 0.0)
        file = SqliteFile(SqliteAddress(f"sqlite:///{tmp_path}/records.db"), 30, clock)
        return SqlCache(lambda loop: SqliteRows(file, loop, 30), timeout=30, closed=file.close)

    early = cache_at(1_000)
    await succeeded(early, "a:key")
    await early.close()
    late = cache_at(1_000 + MANY_MS / 1000)
    await claim(late, "b:key")
    await late.close()
    back = cache_at(1_000)
    assert (await claim(back, "a:key")).won
    await back.close()


async def test_what_is_over_is_gone_at_its_instant_and_swept(tmp_path: Path) -> None:
    now = [1_000.0]
    file = SqliteFile(SqliteAddress(f"sqlite:///{tmp_path}/records.db"), 30, SteadyClock(lambda: now[0], lambda: 0.0))
    cache = SqlCache(lambda loop: SqliteRows(file, loop, 30), timeout=30, closed=file.close)
    for number in range(100):
        assert await complete(cache, f"a:{number}", await claim(cache, f"a:{number}"), ttl_ms=5_000)
    now[0] = 1_004.999
    assert not (await claim(cache, "a:1")).won
    now[0] = 1_005.0
    assert await cache.get("a:1") is None
    assert (await claim(cache, "a:1")).won

    def left() -> int:
        with closing(sqlite3.connect(tmp_path / "records.db")) as connection:
            return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])

    await until(lambda: left() == 1)
    await cache.close()


# -- disks -------------------------------------------------------------------------------------------------------------


async def test_a_disk_with_little_room_takes_outcomes_and_no_new_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "records.db") as cache:
        won = await claim(cache, "a:key")
        monkeypatch.setattr(module, "LEAST_FREE_BYTES", 1 << 62)
        monkeypatch.setattr(module, "_IDLE", 0.0)
        file = file_in(tmp_path)
        has_room_until(file, 0.0)
        with pytest.raises(CacheFull):
            await claim(cache, "b:key")
        assert any("MiB are free" in line for line in await cache.check())
        assert await complete(cache, "a:key", won)
        assert (await claim(cache, "a:key")).record.response == RESPONSE


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], check=True)
    yield
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a file system")
async def test_a_full_disk_is_an_outage_and_replays_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_FREE_BYTES", 0)  # the disk itself is to say so
    with small_disk(tmp_path):
        async with opened(tmp_path / "records.db") as cache:
            await succeeded(cache, "a:key")
            with suppress(OSError), (tmp_path / "filler").open("wb", buffering=0) as filler:
                while filler.write(b"\0" * 4096):
                    pass
            with pytest.raises(CacheUnavailable, match=r"disk|SQLITE_IOERR"):
                await asyncio.gather(*(claim(cache, f"b:{number}") for number in range(1000)))
            assert (await claim(cache, "a:key")).record.response == RESPONSE
            (tmp_path / "filler").unlink()
            assert (await claim(cache, "c:key")).won


async def test_a_file_that_cannot_be_written_to_serves_replays(tmp_path: Path) -> None:
    async with opened(tmp_path / "records.db") as cache:
        await succeeded(cache, "a:key")
        file = file_in(tmp_path)
        connection_of(file).execute("PRAGMA query_only = on")
        with pytest.raises(CacheUnavailable, match="can't be written to"):
            await claim(cache, "b:key")
        assert (await claim(cache, "a:key")).record.response == RESPONSE


async def test_a_file_that_is_removed_in_use_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who goes on in the removed one would share no record with who starts afterwards."""
    path = tmp_path / "records.db"
    async with opened(path) as cache:
        await succeeded(cache, "a:key")
        for name in ("records.db", "records.db-wal", "records.db-shm"):
            (tmp_path / name).unlink()
        assert (await claim(cache, "b:key")).won
        await until(lambda: path.exists())
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT key FROM records").fetchall() == [("b:key",)]
        assert (await claim(cache, "a:key")).won


async def test_a_replay_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """It is read on the event loop: the thread has nothing to do with it."""
    async with opened(tmp_path / "records.db") as cache:
        await succeeded(cache, "a:key")
        file = file_in(tmp_path)
        put = file.put
        file.put = lambda *_: pytest.fail("a replay goes to the thread")  # type: ignore[method-assign]  # replaced for the length of a test
        try:
            assert not (await claim(cache, "a:key")).won
        finally:
            file.put = put  # type: ignore[method-assign]  # replaced for the length of a test


async def test_a_large_record_is_not_read_on_the_loop(tmp_path: Path) -> None:
    large = RESPONSE._replace(body=os.urandom(1_000_000))
    async with opened(tmp_path / "records.db") as cache:
        won = await claim(cache, "a:key")
        await cache.complete("a:key", Record(State.SUCCEEDED, won.record.token, PRINT, 1, large), ttl_ms=MANY_MS)
        line = line_of(cache)
        assert line.rows.glance("a:key") is None
        assert (await claim(cache, "a:key")).record.response == large
        peeked = await cache.peek("a:key")
        assert peeked is not None
        assert peeked.record.response is not None
        assert peeked.record.response.body == b""
