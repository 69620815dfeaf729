"""Lines are written by a thread: whole, in order, bounded, whatever becomes of where they go.

Rules of docs/contract.md: R11.32.
"""

import asyncio
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oncegate.app.telemetry import line_writer
from oncegate.app.telemetry.line_writer import MOST_BYTES, LineWriter
from testing.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]
LINE = b"%06d " + b"x" * 400 + b"\n"
LINES = 40_000
"""Of these lines: more than may wait, and than a pipe holds besides."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


class Writing:
    """A writer, and how many lines it has dropped."""

    def __init__(self, path: str = "", descriptor: int | None = None) -> None:
        self.dropped = 0
        self.lines = LineWriter(path, self._drop)
        if descriptor is not None:
            self.lines._descriptor = descriptor
        self.lines.start()

    def _drop(self, lines: int) -> None:
        self.dropped += lines


def reader(descriptor: int) -> Callable[[], bytes]:
    """What has come so far by a pipe, read to where it is empty."""
    os.set_blocking(descriptor, False)
    got = bytearray()

    def read() -> bytes:
        try:
            while piece := os.read(descriptor, 1 << 20):
                got.extend(piece)
        except BlockingIOError:
            pass
        return bytes(got)

    return read


async def test_lines_are_in_the_file_in_their_order(tmp_path: Path) -> None:
    there = Writing(str(tmp_path / "log"))
    for number in range(1000):
        there.lines.write(LINE % number)
        if number % 100 == 0:
            await asyncio.sleep(0)
    there.lines.close()
    assert (tmp_path / "log").read_bytes() == b"".join(LINE % number for number in range(1000))
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640 & ~_umask()
    assert there.dropped == 0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


async def test_what_nobody_reads_holds_up_nothing_and_is_bounded(
    pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    there = Writing(descriptor=pipe[1])
    longest = 0.0
    for number in range(LINES):
        began = (
            time.thread_time()
        )  # a machine may stand still; a write that waits for its reader would not return at all
        there.lines.write(LINE % number)
        longest = max(longest, time.thread_time() - began)
        if number % 100 == 0:
            await asyncio.sleep(0)
    held = LINES - there.dropped
    assert there.dropped > 0
    assert held * len(LINE % 0) <= MOST_BYTES + 2 * len(LINE)
    assert longest < 1
    assert [record.message for record in caplog.records] == [
        "lines of the access log are dropped: it is written too slowly"
    ]
    read = reader(pipe[0])
    await until(lambda: read().count(b"\n") == held)
    there.lines.write(LINE % LINES)
    await until(lambda: read().endswith(LINE % LINES))
    assert all(line == LINE % int(line[:6]) for line in read().splitlines(keepends=True))
    assert read() == b"".join(sorted(read().splitlines(keepends=True))), "in their order"
    await until(lambda: "the access log is written again" in caplog.text)
    there.lines.close()


@pytest.mark.parametrize("broken", ["full", "closed"])
async def test_a_failure_is_one_line_of_the_log_and_what_is_lost_is_counted(
    pipe: tuple[int, int], broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    if broken == "closed":
        os.close(pipe[0])
        there = Writing(descriptor=pipe[1])
    else:
        there = Writing("/dev/full")
    for batch in range(1, 4):
        for number in range(10):
            there.lines.write(LINE % number)
        await until(lambda batch=batch: there.dropped == 10 * batch)  # type: ignore[misc]  # a loop's variable, kept
    reason = "Broken pipe" if broken == "closed" else "No space left on device"
    assert [record.message for record in caplog.records] == [f"lines of the access log are dropped: {reason}"]
    there.lines.close()


def child(call: str, **options: Any) -> "subprocess.Popen[bytes]":
    """A process that runs ``call`` of this module."""
    program = (
        f"import asyncio\nfrom {__name__} import short_of_space, write_many\nraise SystemExit(asyncio.run({call}))"
    )
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **options)


async def ended(process: "subprocess.Popen[bytes]") -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


async def test_a_line_that_was_written_in_part_is_ended_before_the_next(tmp_path: Path) -> None:
    """The file may be no longer than three lines and a half, until it may."""
    assert await ended(child(f"short_of_space({str(tmp_path / 'log')!r})")) == 0
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    assert lines[:3] == [LINE % number for number in range(3)]
    assert lines[3] == (LINE % 3)[: len(LINE % 3) // 2] + b"\n"
    assert lines[4:] == [LINE % 9]


async def short_of_space(path: str) -> int:
    size = len(LINE % 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * size + size // 2, resource.RLIM_INFINITY))
    there = Writing(path)
    for number in range(5):
        there.lines.write(LINE % number)
    await until(lambda: there.dropped == 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    there.lines.write(LINE % 9)
    there.lines.close()
    return 0


@pytest.mark.parametrize("to", ["file", "pipe"])
async def test_lines_of_several_processes_are_whole(tmp_path: Path, pipe: tuple[int, int], to: str) -> None:
    (tmp_path / "log").touch()
    path = str(tmp_path / "log") if to == "file" else ""
    children = [child(f"write_many({path!r}, {pipe[1]}, {n})", pass_fds=(pipe[1],)) for n in range(4)]
    read = (tmp_path / "log").read_bytes if path else reader(pipe[0])
    await until(lambda: read().count(b"\n") == 4 * 2000)
    assert [await ended(process) for process in children] == [0, 0, 0, 0]
    lines = read().splitlines(keepends=True)
    for number in range(4):
        own = [line for line in lines if line.startswith(b"%d " % number)]
        assert own == [_line(number, count) for count in range(2000)]


def _line(writer: int, count: int) -> bytes:
    return b"%d %d %b\n" % (writer, count, b"abcdefghij" * (count % 60))


async def write_many(path: str, descriptor: int, writer: int) -> int:
    there = Writing(path, None if path else descriptor)
    for count in range(2000):
        there.lines.write(_line(writer, count))
        if count % 50 == 0:
            await asyncio.sleep(0.005)
    await until(lambda: there.lines._taken == there.lines._done)
    there.lines.close()
    return there.dropped


async def test_the_end_does_not_wait_for_a_reader_that_is_gone(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(line_writer, "LAST_SECONDS", 0.1)
    there = Writing(descriptor=pipe[1])
    for number in range(1000):
        there.lines.write(LINE % number)
    there.lines.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the end of the access log was not written" in caplog.text
    read = reader(pipe[0])
    await until(lambda: read().endswith(LINE % 999))  # lets the thread end


async def test_what_comes_after_the_end_is_written_by_another(tmp_path: Path) -> None:
    there = Writing(str(tmp_path / "log"))
    there.lines.write(b"one\n")
    there.lines.close()
    there.lines.write(b"two\n")
    there.lines.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_a_pipe_that_nobody_reads_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device or address"):
        LineWriter(str(tmp_path / "pipe"), lambda _: None)


async def test_a_file_that_was_rotated_before_a_worker_started_is_the_new_one(tmp_path: Path) -> None:
    lines = LineWriter(str(tmp_path / "log"), lambda _: None)
    (tmp_path / "log").rename(tmp_path / "log.1")
    lines.start()
    lines.write(b"one\n")
    lines.close()
    assert ((tmp_path / "log").read_bytes(), (tmp_path / "log.1").read_bytes()) == (b"one\n", b"")
