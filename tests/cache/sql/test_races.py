"""Several processes claim the same keys of one database, and are killed in between: no key is won twice.

Rules of docs/contract.md: R1.1, R1.2, R12.60.
"""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from oncegate.cache.sql.postgresql import statements
from testing.postgresql import PostgreSQLServer
from testing.servers import bound

ENDS_WITHIN = 300.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/records.db"
    server: PostgreSQLServer = request.getfixturevalue("records_server")
    database = server.database()
    server.execute(statements.TABLES, database)
    return f"postgresql://postgres@127.0.0.1:{server.port}/{database}"


def racer(url: str, keys: int, callers: int, seed: int, log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.cache.sql.racer", url, str(keys), str(callers), str(seed), str(log)]
    return subprocess.Popen(bound(*command), stderr=subprocess.PIPE)


def run(url: str, log: Path, *, processes: int, callers: int, keys: int, kills: int) -> None:
    log.touch()
    running = [racer(url, keys, callers, seed, log) for seed in range(processes)]
    chance, seed, written = random.Random(kills), processes, 0
    for _ in range(kills):
        until = time.monotonic() + ENDS_WITHIN
        while log.stat().st_size < written + 2000 and time.monotonic() < until:
            if all(each.poll() is not None for each in running):
                break
            time.sleep(0.005)
        written = log.stat().st_size
        victim = chance.randrange(len(running))
        running[victim].kill()
        running[victim].wait()
        running[victim].communicate()
        seed += 1
        running[victim] = racer(url, keys, callers, seed, log)
    for each in running:
        _, errors = each.communicate(timeout=ENDS_WITHIN)
        assert each.returncode == 0, errors.decode()


def seen(log: Path, kind: str) -> "Counter[tuple[str, int]]":
    lines = [line.split() for line in log.read_text().splitlines()]
    return Counter((key, int(attempt)) for name, key, attempt, _ in lines if name == kind)


def test_no_key_is_won_twice_and_no_attempt_is_skipped(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(url, log, processes=3, callers=16, keys=40, kills=0)
    won = seen(log, "won")
    assert set(won.values()) == {1}
    for number in range(40):
        attempts = sorted(attempt for key, attempt in won if key == f"race:{number}:caller")
        assert attempts == list(range(1, len(attempts) + 1))
    successes = Counter(key for key, _ in seen(log, "succeeded").elements())
    assert set(successes.values()) == {1}


@pytest.mark.parametrize(("processes", "keys", "kills"), [(2, 40, 3), pytest.param(4, 300, 10, marks=pytest.mark.long)])
def test_no_key_is_won_twice_while_processes_are_killed(
    url: str, tmp_path: Path, processes: int, keys: int, kills: int
) -> None:
    log = tmp_path / "log"
    run(url, log, processes=processes, callers=16, keys=keys, kills=kills)
    assert set(seen(log, "won").values()) == {1}
    successes = Counter(key for key, _ in seen(log, "succeeded").elements())
    assert max(successes.values()) == 1
    assert len(successes) >= keys - 16 * kills  # who is killed before its line is written has recorded it all the same
