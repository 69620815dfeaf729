"""A database of records: what is refused, what a standby and a crash do, and what a replay costs the server.

Rules of docs/contract.md: R12.63, R12.64, R12.65, R12.66.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
import pytest

from oncegate.cache.errors import CacheFull, CacheRefused, CacheUnavailable, CacheUnsupported
from oncegate.cache.record import Claim, ClaimRequest, Record, State, StoredResponse
from oncegate.cache.sql.postgresql import rows as rows_module
from oncegate.cache.sql.postgresql import statements
from oncegate.cache.sql.rows import Reply, Step
from oncegate.cache.sql.store import SqlCache
from testing.postgresql import PostgreSQLServer
from testing.waiting import until
from tests.cache.sql.inside import is_quiet, line_of

PRINT = b"p" * 16
RESPONSE = StoredResponse(201, ((b"content-type", b"text/plain"),), b"done", 1_700_000_000_000)
MANY_MS = 600_000
RETRY = frozenset({State.FAILED, State.UNKNOWN})


@pytest.fixture
def database(records_server: PostgreSQLServer) -> str:
    name = records_server.database()
    records_server.execute(statements.TABLES, name)
    return name


def url(server: PostgreSQLServer, database: str, user: str = "postgres") -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


@asynccontextmanager
async def opened(
    server: PostgreSQLServer, database: str, timeout: float = 30, options: str = ""
) -> AsyncIterator[SqlCache]:
    cache = SqlCache.from_url(url(server, database) + options, timeout=timeout)
    yield cache
    await cache.close()


async def claim(cache: SqlCache, key: str, takeover: frozenset[State] = frozenset(), lease_ms: int = MANY_MS) -> Claim:
    return await cache.claim(key, ClaimRequest(os.urandom(16), PRINT, lease_ms, MANY_MS, takeover))


async def succeeded(cache: SqlCache, key: str, ttl_ms: int = MANY_MS) -> None:
    won = await claim(cache, key)
    assert await cache.complete(key, Record(State.SUCCEEDED, won.record.token, PRINT, 1, RESPONSE), ttl_ms=ttl_ms)


def on_insert(server: PostgreSQLServer, database: str, body: str) -> None:
    """Have the server execute ``body`` after each statement that inserts records, which are ``inserted``."""
    server.execute(
        f"CREATE FUNCTION on_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;"
        "CREATE TRIGGER on_insert AFTER INSERT ON oncegate_records REFERENCING NEW TABLE AS inserted"
        " FOR EACH STATEMENT EXECUTE FUNCTION on_insert()",
        database,
    )


# -- what is refused ---------------------------------------------------------------------------------------------------


async def test_a_missing_table_names_the_command_that_makes_it(records_server: PostgreSQLServer) -> None:
    async with opened(records_server, records_server.database()) as cache:
        with pytest.raises(CacheUnsupported, match="oncegate records create"):
            await cache.check()
        with pytest.raises(CacheUnavailable, match="oncegate records create"):
            await claim(cache, "a:key")


async def test_a_missing_privilege_is_named(records_server: PostgreSQLServer, database: str) -> None:
    records_server.execute("CREATE ROLE reader LOGIN", database)
    try:
        records_server.execute("GRANT SELECT, INSERT ON oncegate_records TO reader", database)
        cache = SqlCache.from_url(url(records_server, database, "reader"), timeout=30)
        with pytest.raises(CacheUnsupported, match="lacks UPDATE, DELETE on oncegate_records: GRANT it"):
            await cache.check()
        await cache.close()
    finally:
        records_server.execute("DROP OWNED BY reader; DROP ROLE reader", database)


async def test_a_newer_table_is_refused(records_server: PostgreSQLServer, database: str) -> None:
    records_server.execute(f"COMMENT ON TABLE oncegate_records IS '{statements.MARK}{statements.SCHEMA + 1}'", database)
    async with opened(records_server, database) as cache:
        with pytest.raises(CacheUnsupported, match="newer oncegate"):
            await cache.check()


async def test_settings_that_lose_commits_are_warned_of(records_server: PostgreSQLServer, database: str) -> None:
    records_server.execute(f"ALTER DATABASE {database} SET synchronous_commit = off", database)
    async with opened(records_server, database) as cache:
        advice = await cache.check()
        assert [line.split(" ")[0] for line in advice] == [
            "PostgreSQL",
            "synchronous_commit",
        ]  # the tests' server has fsync off


async def test_a_server_that_is_not_there_is_an_outage_in_time(records_server: PostgreSQLServer) -> None:
    cache = SqlCache.from_url("postgresql://nobody:secret@127.0.0.1:1/none", timeout=5)
    with pytest.raises(CacheUnavailable) as caught:
        await claim(cache, "a:key")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    await cache.close()


# -- what a replay costs -----------------------------------------------------------------------------------------------


async def test_a_replay_writes_nothing(records_server: PostgreSQLServer, database: str) -> None:
    async with opened(records_server, database) as cache:
        await succeeded(cache, "a:key")
        await claim(cache, "a:key", RETRY)
        xid = records_server.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint", database)
        for _ in range(100):
            assert (await claim(cache, "a:key", RETRY)).record.response == RESPONSE
        after = records_server.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint", database)
        assert after[0][0] - xid[0][0] < 20  # of other tests' transactions


async def test_what_waits_goes_as_one_statement(records_server: PostgreSQLServer, database: str) -> None:
    async with opened(records_server, database) as cache:
        await succeeded(cache, "warm:key")
        on_insert(records_server, database, "INSERT INTO made SELECT count(*) FROM inserted; RETURN NULL;")
        records_server.execute("CREATE TABLE made (records bigint)", database)
        await asyncio.gather(*(claim(cache, f"a:{number}") for number in range(100)))
        sent = [made for (made,) in records_server.execute("SELECT records FROM made", database)]
        assert sum(sent) == 100
        assert len(sent) <= 3


# -- races -------------------------------------------------------------------------------------------------------------


async def test_statements_that_take_the_same_keys_in_other_orders_do_not_wait_for_each_other(
    records_server: PostgreSQLServer, database: str
) -> None:
    async with opened(records_server, database) as first, opened(records_server, database) as second:
        for _ in range(40):
            keys = [f"a:{number}" for number in range(60)]
            there = asyncio.gather(*(claim(first, key, RETRY, 1) for key in keys))
            back = asyncio.gather(*(claim(second, key, RETRY, 1) for key in reversed(keys)))
            await asyncio.gather(there, back)
        dead = records_server.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()", database
        )
        assert dead == [(0,)]


async def test_no_lock_outlives_a_statement(records_server: PostgreSQLServer, database: str) -> None:
    """A process that is stopped in the midst of a call holds up nobody: nothing is begun that it would have to end."""
    async with opened(records_server, database) as cache:
        seen: list[int] = []
        watching = asyncio.Event()

        async def watch() -> None:
            statement = (
                "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%' AND datname = %s"
            )
            with psycopg.connect(url(records_server, database), autocommit=True) as connection:
                while not watching.is_set():
                    found = connection.execute(statement, (database,)).fetchone()
                    seen.append(found[0] if found else -1)
                    await asyncio.sleep(0)

        task = asyncio.create_task(watch())
        for number in range(50):
            won = await claim(cache, f"a:{number}")
            await cache.renew(f"a:{number}", token=won.record.token, lease_ms=1)
            assert await cache.release(f"a:{number}", token=won.record.token)
        watching.set()
        await task
        assert set(seen) == {0}


STOPS = """
import asyncio, os, signal, sys
from oncegate.cache.record import ClaimRequest, State
from oncegate.cache.sql import calls
from oncegate.cache.sql.store import SqlCache

decide = calls.CallDecision._decide

def stopping(self, held, expected, row):
    step = decide(self, held, expected, row)
    if row is not None and step is not None:
        print("between", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)  # it has read, and has not swapped yet
    return step

calls.CallDecision._decide = stopping

async def main():
    cache = SqlCache.from_url(sys.argv[1], timeout=30)
    takeover = frozenset({State.FAILED, State.UNKNOWN})
    claim = await cache.claim("a:key", ClaimRequest(os.urandom(16), b"p" * 16, 600000, 600000, takeover))
    print(claim.won, flush=True)
    await cache.close()

asyncio.run(main())
"""


async def test_a_process_that_is_stopped_between_look_and_swap_holds_up_nobody(
    records_server: PostgreSQLServer, database: str
) -> None:
    async with opened(records_server, database) as cache:
        await claim(cache, "a:key", lease_ms=1)
        await until(lambda: _is_unknown(cache, "a:key"))
        command = [sys.executable, "-c", STOPS, url(records_server, database)]
        with await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "between\n"
            try:
                async with asyncio.timeout(20):
                    won = await claim(cache, "a:key", RETRY)
                    assert (won.won, won.record.attempt) == (True, 2)
                    await succeeded(cache, "b:key")
            finally:
                process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(process.stdout.readline) == "False\n"


async def _is_unknown(cache: SqlCache, key: str) -> bool:
    found = await cache.get(key)
    return found is not None and found.record.state is State.UNKNOWN


async def test_a_row_that_is_over_and_not_swept_is_claimed_as_a_first_attempt(
    records_server: PostgreSQLServer, database: str
) -> None:
    async with opened(records_server, database) as cache:
        await succeeded(cache, "a:key")
        records_server.execute("UPDATE oncegate_records SET ends_ms = 1", database)
        assert await cache.get("a:key") is None
        won = await claim(cache, "a:key")
        assert (won.won, won.record.attempt) == (True, 1)


async def test_rows_that_are_over_are_swept(
    records_server: PostgreSQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "_SWEEP_PAUSE", 0.05)
    records_server.execute(
        "INSERT INTO oncegate_records SELECT 'old:' || n, '', n FROM generate_series(1, 2500) AS n", database
    )
    async with opened(records_server, database) as cache:
        await succeeded(cache, "a:key")
        await until(lambda: records_server.execute("SELECT count(*) FROM oncegate_records", database) == [(1,)])


# -- outages -----------------------------------------------------------------------------------------------------------


async def test_a_database_that_takes_no_writes_serves_replays(records_server: PostgreSQLServer, database: str) -> None:
    async with opened(records_server, database) as cache:
        await succeeded(cache, "a:key")
        records_server.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    async with opened(records_server, database) as cache:
        assert (await claim(cache, "a:key")).record.response == RESPONSE
        with pytest.raises(CacheRefused, match="takes no writes"):
            await claim(cache, "b:key")
        assert (await cache.get("a:key")) is not None


@contextmanager
def own_server() -> Iterator[tuple[PostgreSQLServer, str]]:
    with PostgreSQLServer() as server:
        name = server.database()
        server.execute(statements.TABLES, name)
        yield server, name


async def test_a_server_that_is_killed_and_started_again_forgets_nothing_that_was_answered() -> None:
    with own_server() as (server, database):
        async with opened(server, database, timeout=1) as cache:
            won: dict[str, Claim] = {}
            for number in range(30):
                if number in (10, 20):
                    server.stop()
                    with pytest.raises(CacheUnavailable):
                        await claim(cache, "down:key")
                    server.start()
                key = f"a:{number}"
                while key not in won:
                    try:
                        answer = await claim(cache, key)
                    except CacheUnavailable:
                        await asyncio.sleep(0.01)
                    else:
                        assert answer.won
                        won[key] = answer
            for key, each in won.items():
                found = await cache.get(key)
                assert found is not None
                assert found.record.token == each.record.token
            line = line_of(cache)
            await until(lambda: is_quiet(line))
            assert await cache.get("down:key") is None


class Standby(PostgreSQLServer):
    """A copy of a server that follows it."""

    def __init__(self, primary: PostgreSQLServer) -> None:
        super().__init__()
        shutil.rmtree(self.folder / "data")
        where = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        self._run("pg_basebackup", "-D", "data", "-R", "-X", "stream", "-c", "fast", *where)

    def has(self, key: str, database: str) -> bool:
        """Whether the record has come over."""
        return bool(self.execute(f"SELECT 1 FROM oncegate_records WHERE key = '{key}'", database))


async def test_a_standby_serves_replays_and_once_promoted_everything_but_what_it_had_not_got() -> None:
    with own_server() as (primary, database), Standby(primary) as standby:
        async with opened(primary, database) as cache:
            await succeeded(cache, "a:key")
            await until(lambda: standby.has("a:key", database))
        refused = SqlCache.from_url(url(standby, database), timeout=30)
        with pytest.raises(CacheUnsupported, match="names a standby"):
            await refused.check()
        assert (await claim(refused, "a:key")).record.response == RESPONSE
        with pytest.raises(CacheRefused, match="takes no writes"):
            await claim(refused, "b:key")
        await refused.close()
        standby.stop()  # what is answered from here on doesn't come over
        async with opened(primary, database) as cache:
            await succeeded(cache, "lost:key")
        primary.stop()
        standby.start()
        standby.execute("SELECT pg_promote()")
        async with opened(standby, database) as cache:
            assert (await claim(cache, "a:key")).record.response == RESPONSE
            assert (await claim(cache, "b:key")).won
            assert (await claim(cache, "lost:key")).won  # as docs/databases.md says


async def test_a_full_disk_is_told_as_such(records_server: PostgreSQLServer, database: str) -> None:
    on_insert(records_server, database, "RAISE disk_full;")
    async with opened(records_server, database) as cache:
        with pytest.raises(CacheFull):
            await claim(cache, "a:key")


async def test_without_prepared_statements(records_server: PostgreSQLServer, database: str) -> None:
    async with opened(records_server, database, options="?prepare=off") as cache:
        await succeeded(cache, "a:key")
        assert (await claim(cache, "a:key")).record.response == RESPONSE
        assert records_server.execute("SELECT count(*) FROM pg_prepared_statements", database) == [(0,)]


async def test_retries_that_come_together_are_answered_by_one_read(
    records_server: PostgreSQLServer, database: str
) -> None:
    async with opened(records_server, database) as cache:
        await succeeded(cache, "a:key")
        line = line_of(cache)
        sent: list[str] = []
        put = line.rows.put

        def counted(step: Step, then: Callable[[Reply], None]) -> None:
            sent.append(type(step).__name__)
            put(step, then)

        line.rows.put = counted  # type: ignore[method-assign]  # counted on its way
        answers = await asyncio.gather(*(claim(cache, "a:key") for _ in range(50)))
        assert all(each.record.response == RESPONSE for each in answers)
        assert sent == ["Swap", "Read"]


async def test_of_many_that_wait_for_one_key_one_takes_over(records_server: PostgreSQLServer, database: str) -> None:
    async with opened(records_server, database) as cache:
        won = await claim(cache, "a:key")
        await cache.complete("a:key", Record(State.FAILED, won.record.token, PRINT, 1), ttl_ms=MANY_MS)
        answers = await asyncio.gather(*(claim(cache, "a:key", RETRY) for _ in range(50)))
        assert sorted(each.won for each in answers) == [False] * 49 + [True]
        assert {each.record.attempt for each in answers} == {2}
