"""What each step of an append takes, in instructions of Redis, counted by callgrind: what costs what, and what is the floor.

Each step is the append without all that comes after it, so that the difference between two is that of one step. Reading the
command from its connection is left out: the same arguments, sent for a script that isn't there, take that alone.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

import redis

from loadtests import machine, processes
from loadtests.instructions import READY_WITHIN, control, counted
from loadtests.processes import BenchError, Process
from loadtests.report import Table
from oncegate.cache.redis.scripts import APPEND, APPEND_NUMBERED, Script
from oncegate.cache.redis.streams.append import Numbering
from oncegate.cache.redis.streams.stream import Command

AGGREGATES: Final = 1000
LIMIT: Final = 10**8
_CALLS: Final = 1500
"""Of each step, behind as many that fill the hash and the stream; of 256 appends three sweep."""
_AT_ONCE: Final = 50
PARTS: Final = Command(
    command="09qCqGFMd5g_6hU4Megs:uSNy8UN7nKoF4s0Uzlpq",
    key="3e4b1a0c-7f0e-4c0e-9a55-8d2f6c1f2b11",
    fingerprint=bytes(16),
    method="POST",
    target="/orders/1795282931391",
    route="/orders/*",
    body=b"x" * 300,
    content_type="application/json",
    correlation="8e03978e-40d5-43dd-bc93-6894a57f9324",
    traceparent="00-11111111111111111111111111111111-2222222222222222-01",
    accepted_at_ms=1_795_282_931_391,
    headers=(("content-type", "application/json"), ("idempotency-key", "3e4b1a0c-7f0e-4c0e-9a55-8d2f6c1f2b11")),
).parts()
ABOUT: Final = [b"aggregate", b"1795282931391", *PARTS]


def _source(script: Script) -> str:
    return script.source.decode()


_TRIM: Final = _source(Script("trim"))
_LIMIT: Final = """
local call = redis.call
if call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then return false end
"""
_ADD: Final = """
local aggregate, command = ARGV[4], ARGV[5]
ARGV[4], ARGV[5] = 'sequence', number
local note = call('XADD', KEYS[1], '*', unpack(ARGV, 4)) .. ' ' .. number
"""
_NUMBER: Final = "local number = string.format('%.0f', (call('HGET', KEYS[2], ARGV[4]) or '0') + 1)"
BEFORE: Final = f"""{_TRIM}
if #ARGV == 1 then
  return trim()
end
local limit = tonumber(ARGV[1])
local length = redis.call('XLEN', KEYS[1])
if length >= limit or length % 100 == 99 then
  length = length - trim()
end
if length >= limit then
  return false
end
return redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
"""
"""The append as it was before there were numbers."""


def digest(number: int, size: int) -> bytes:
    """A field of the hash of numbers."""
    return blake2b(b"%d" % number, digest_size=size).digest()


def numbering(stream: str, number: int, command: int, *, expects: bool) -> Numbering:
    """What the ``number``-th command takes, counted from 0, of aggregates that take turns."""
    return Numbering(
        f"{stream}:numbers".encode(),
        digest(number % AGGREGATES, 16),
        digest(command, 20),
        b"%d" % (number // AGGREGATES) if expects else b"",
        LIMIT,
        LIMIT,
    )


def _plain(stream: str, _: int) -> list[bytes | int]:
    return [1, stream.encode(), b"%d" % LIMIT, *PARTS]


def _numbered(stream: str, number: int) -> list[bytes | int]:
    given = numbering(stream, number, number, expects=False)
    times = b"%d %d" % (given.known_ms, given.kept_ms)
    head = [stream.encode(), given.numbers, b"%d" % LIMIT, given.expected, times, given.aggregate, given.command]
    return [2, *head, *ABOUT]


_WHOLE: Final = _source(APPEND_NUMBERED)
_STEPS: Final[dict[str, tuple[str, Callable[[str, int], list[bytes | int]]]]] = {
    "as it was before there were numbers": (BEFORE, _plain),
    "without a number": (_source(APPEND), _plain),
    "with a number's arguments, none of them used": (
        f"{_LIMIT} return call('XADD', KEYS[1], '*', unpack(ARGV, 8))",
        _numbered,
    ),
    "and with the fields `aggregate` and `sequence`": (f"{_LIMIT} local number = '17' {_ADD} return note", _numbered),
    "and with the number read and written (HGET, HSET)": (
        f"{_LIMIT} {_NUMBER} {_ADD} call('HSET', KEYS[2], aggregate, number) return note",
        _numbered,
    ),
    "and with the command looked for and noted (HGET, the same HSET)": (
        re.sub(r"^if command:byte\(\) < SWEEPS then\n.*?^end\n", "", _WHOLE, flags=re.DOTALL | re.MULTILINE),
        _numbered,
    ),
    "and with old notes swept out: with a number": (_WHOLE, _numbered),
}


def count() -> dict[str, float]:
    """Instructions for one append by each step. Raises `BenchError` where callgrind or Redis can't be had."""
    valgrind = processes.tool("valgrind")
    binary = shutil.which("redis-server")
    if binary is None:
        raise BenchError("redis-server is not on the PATH: run scripts/bench, which brings one")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-bench-")))
        port = processes.free_port()
        callgrind = [f"{valgrind}/valgrind", "--tool=callgrind", "--trace-children=yes"]
        command = [*callgrind, f"--callgrind-out-file={folder}/out.%p", binary, "--port", str(port)]
        # Its clock's work between the calls is no part of them.
        command += ["--bind", "127.0.0.1", "--save", "", "--dir", str(folder), "--hz", "1"]
        core = ",".join(map(str, machine.cores()))
        server = stack.enter_context(
            Process("redis", command, port=port, core=core, folder=folder, ready_within=READY_WITHIN)
        )
        client = stack.enter_context(
            contextlib.closing(redis.Redis(port=port, socket_timeout=READY_WITHIN, single_connection_client=True))
        )
        return {meaning: _counted(valgrind, server, client, meaning) for meaning in _STEPS}


def _counted(valgrind: str, server: Process, client: redis.Redis, meaning: str) -> float:
    source, arguments = _STEPS[meaning]
    loaded = str(client.script_load(source))
    stream = f"{{bench:stream:{blake2b(meaning.encode(), digest_size=4).hexdigest()}}}"

    def call(script: str, first: int) -> int:
        control(valgrind, "-z", None, server)
        for start in range(first, first + _CALLS, _AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for number in range(start, start + _AT_ONCE):
                pipeline.execute_command("EVALSHA", script, *arguments(stream, number))  # type: ignore[no-untyped-call]  # redis-py
            replies = pipeline.execute(raise_on_error=False)
            if script == loaded and not all(isinstance(reply, bytes) for reply in replies):
                raise BenchError(f"it was not appended: {replies[0]}")
        return counted(valgrind, server)

    call(loaded, 0)
    return (call(loaded, _CALLS) - call("0" * len(loaded), _CALLS)) / _CALLS


def table(steps: dict[str, float]) -> Table:
    """The steps, each with what it adds, and the share of an append that one before there were numbers took."""
    before = next(iter(steps.values()))
    rows, last = [], 0.0
    for number, (meaning, taken) in enumerate(steps.items()):
        added = f"{(taken - last) / 1000:+.1f}" if number > 1 else ""
        rows.append([meaning, f"{taken / 1000:.1f}", added, f"{before / taken:.2f}" if number else ""])
        last = taken
    note = "Thousands of instructions of Redis for one append, each line the one before and one step more."
    return Table("The steps of an append", ["append", "thousands", "added", "before / this"], rows, note)
