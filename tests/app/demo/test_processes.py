"""The demo's processes: who dies comes again, all end with it and leave nothing behind, and what can't start is one line.

Rules of docs/contract.md: R10.26.
"""

import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from oncegate.app.demo.stack import find_redis
from testing.command_line import PATIENCE, run
from testing.waiting import wait_until
from tests.app.demo.conftest import Demos


def below(pid: int) -> list[int]:
    """The processes that ``pid`` has started, and those have."""
    started = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return started + [each for one in started for each in below(one)]


def alive(pid: int) -> bool:
    """Whether it runs: who waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="oncegate-") as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("cache", "number"),
    [
        *[("redis", each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)],
        ("sqlite", signal.SIGKILL),  # on SQLite there is a process less, and no other way to end
    ],
)
def test_all_end_with_the_demo_and_leave_nothing(
    demos: Demos, with_redis: str, without_redis: str, temporary: Path, number: int, cache: str
) -> None:
    with demos(with_redis if cache == "redis" else without_redis, TMPDIR=str(temporary)) as demo:
        assert httpx.post(f"{demo.page}/actions/pay", timeout=PATIENCE).status_code == 303
        ours = below(demo.process.process.pid)
        names = " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in ours)
        assert ("redis-server" in names) == (cache == "redis")
        assert list(temporary.iterdir()) != []
        ends = demo.process.stop(number)
        assert ends == (-number if number == signal.SIGKILL else 0)
        wait_until(lambda: not any(map(alive, ours)), "all have ended")
        wait_until(lambda: list(temporary.iterdir()) == [], "the folder is gone")


def test_it_ends_in_the_midst_of_an_action(demos: Demos, without_redis: str) -> None:
    with demos(without_redis) as demo:

        def press() -> None:
            with suppress(httpx.HTTPError):
                httpx.post(f"{demo.page}/actions/pay-twice", timeout=PATIENCE)

        pressed = threading.Thread(target=press)
        pressed.start()
        wait_until(lambda: demo.books()["arrived"] == 1, "the payment is under way")
        demo.stop()
        pressed.join()


def test_the_demo_keeps_what_it_is_given_to_itself(demos: Demos, without_redis: str, temporary: Path) -> None:
    with demos(without_redis, TMPDIR=str(temporary)) as demo:
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        demo.stop()


@pytest.mark.parametrize("name", ["gateway", "payments service"])
def test_who_is_killed_by_hand_comes_again(demos: Demos, without_redis: str, name: str) -> None:
    with demos(without_redis) as demo:
        assert httpx.post(f"{demo.page}/actions/pay", timeout=PATIENCE).status_code == 303
        mark = "serve" if name == "gateway" else "oncegate.app.demo.service"
        (pid,) = [
            each
            for each in below(demo.process.process.pid)
            if mark in Path(f"/proc/{each}/cmdline").read_text().split("\0")
        ]
        os.kill(pid, signal.SIGKILL)
        assert int(demo.process.wait_for(rf"{name} +up \(process (\d+)\)")[1]) != pid
        again = httpx.post(
            f"{demo.gateway}/payments",
            headers={"Idempotency-Key": "demo-1", "Content-Type": "application/x-www-form-urlencoded"},
            content='{"amount": 100}',
            timeout=PATIENCE,
        )
        assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
        assert demo.bookings("demo-1") == 1, "records and books outlast their processes"
        demo.stop()


def test_a_port_in_use_is_one_line(without_redis: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("demo", "--port", str(port), PATH=without_redis, TMPDIR=str(tmp_path))
    assert done.returncode == 1
    line = f"oncegate: the gateway does not start: can't listen on 127.0.0.1:{port}: Address already in use\n"
    assert done.stderr == line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("last", "word"), [("echo broken; exit 1", "broken"), ("exit 1", "ended without a word")])
def test_a_redis_that_does_not_start_is_one_line(without_redis: str, tmp_path: Path, last: str, word: str) -> None:
    path = tmp_path / "path"
    path.mkdir()
    for each in Path(without_redis).iterdir():
        (path / each.name).symlink_to(each)
    (path / "redis-server").write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit\n{last}\n'
    )
    (path / "redis-server").chmod(0o755)
    done = run("demo", "--port", "0", PATH=str(path), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert re.fullmatch(rf"oncegate: the Redis does not start: .*{word}.*\n", done.stderr)
    assert [each for each in tmp_path.iterdir() if each != path] == []


@pytest.mark.parametrize(
    ("version", "taken"), [("Redis server v=6.2.7", False), ("no version", False), ("Redis server v=7.0.0", True)]
)
def test_a_redis_that_is_too_old_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, taken: bool
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis() == (str(program) if taken else None)


def test_a_long_path_of_temporary_folders_does_no_harm(demos: Demos, with_redis: str, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with demos(with_redis, TMPDIR=str(folder)) as demo:
        assert "a Redis of the demo's own" in demo.process.output
        demo.stop()
