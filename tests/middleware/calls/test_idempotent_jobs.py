"""`idempotent` where jobs run: in scripts, in forked workers, in several processes at once, and when they are interrupted.

Rules of docs/contract.md: R12.11.
"""

import asyncio
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oncegate import InFlightError, MemoryCache, NotProcessed, OutcomeUnknownError, idempotent
from oncegate.cache.record import ClaimRequest
from oncegate.middleware.calls.sync import ThreadedCall

PATIENCE = 60.0
SCRIPT = """\
import asyncio, os, sys
from pathlib import Path
from oncegate import idempotent
from oncegate.cache.open import open_cache

open_cache.__kwdefaults__["timeout"] = 30  # a machine that is slow is no outage
CACHE, NAMESPACE, LEDGER = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def book(what):
    with LEDGER.open("a") as ledger:
        ledger.write(what + chr(10))


@idempotent(key=lambda number: number, cache=CACHE, namespace=NAMESPACE, name="charge", wait=30)
def charge(number: int) -> int:
    book(f"charge {number}")
    return number * 2


@idempotent(key=lambda number: number, cache=CACHE, namespace=NAMESPACE, name="refund", wait=30)
async def refund(number: int) -> int:
    book(f"refund {number}")
    await asyncio.sleep(0)
    return -number


"""


def run(body: str, cache: str, namespace: str, ledger: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", SCRIPT + body, cache, namespace, str(ledger)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]") -> str:
    printed, complained = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complained) == (0, "")
    return printed


@pytest.mark.parametrize("where", ["memory", "redis"])
def test_a_plain_script_needs_nothing_else(where: str, redis_url: str, namespace: str, tmp_path: Path) -> None:
    cache = redis_url if where == "redis" else "memory://"
    body = "print(charge(1), charge(1), charge(2))"
    assert ended(run(body, cache, namespace, tmp_path / "ledger")) == "2 2 4\n"
    assert (tmp_path / "ledger").read_text() == "charge 1\ncharge 2\n"


def test_of_several_processes_one_executes(redis_url: str, namespace: str, tmp_path: Path) -> None:
    body = "print(*[charge(n) for n in range(20)]); print(*[asyncio.run(refund(7)) for _ in range(2)])"
    workers = [run(body, redis_url, namespace, tmp_path / "ledger") for _ in range(3)]
    assert {ended(each) for each in workers} == {" ".join(str(n * 2) for n in range(20)) + "\n-7 -7\n"}
    booked = sorted((tmp_path / "ledger").read_text().splitlines())
    assert booked == sorted([*(f"charge {n}" for n in range(20)), "refund 7"])


@pytest.mark.parametrize("used", [False, True])
def test_workers_that_are_forked_share_records_and_no_connections(
    used: bool, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    """As Celery's workers: what is decorated is imported, and perhaps called, before they are forked."""
    body = f"""
if {used}:
    charge(0)
    asyncio.run(refund(0))
import warnings; warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12: the parent has a thread
children = []
for child in range(3):
    if not (pid := os.fork()):
        ok = [charge(n) for n in range(10)] == [n * 2 for n in range(10)] and asyncio.run(refund(3)) == -3
        os._exit(0 if ok else 1)
    children.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children], charge(4))
"""
    assert ended(run(body, redis_url, namespace, tmp_path / "ledger")) == "[0, 0, 0] 8\n"
    booked = (tmp_path / "ledger").read_text().splitlines()
    assert len(booked) == len(set(booked)) == 11 + used


def test_what_is_interrupted_while_it_executes_is_of_unknown_outcome(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    body = """
import signal, time
from oncegate import OutcomeUnknownError
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background has it ignored
@idempotent(key=lambda number: number, cache=CACHE, namespace=NAMESPACE)
def slow(number: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
try:
    slow(1)
except KeyboardInterrupt:
    try:
        slow(1)
    except OutcomeUnknownError:
        print("unknown", charge(1))
"""
    assert ended(run(body, redis_url, namespace, tmp_path / "ledger")) == "unknown 2\n"


class Held(MemoryCache):
    """Does not answer a claim before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed = threading.Event()
        self.go = threading.Event()

    async def claim(self, key: str, request: ClaimRequest, **call: Any) -> Any:
        self.claimed.set()
        await asyncio.to_thread(self.go.wait, PATIENCE)
        return await super().claim(key, request, **call)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python raises `KeyboardInterrupt`, also where the suite runs in the background, which has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_what_is_interrupted_before_it_executes_leaves_the_key_free() -> None:
    cache, calls = Held(), []

    @idempotent(key=lambda number: number, cache=cache)
    def charge(number: int) -> int:
        calls.append(number)
        return len(calls)

    def interrupt() -> None:
        assert cache.claimed.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            charge(1)
        assert not calls
        cache.go.set()
    while True:  # it is given back, or not: whoever waits for it meanwhile claims it anew
        try:
            assert charge(1) == 1
        except InFlightError:
            continue
        break
    assert calls == [1]


async def test_nobody_waits_for_a_thread_that_has_left() -> None:
    calls = [ThreadedCall(int, (), {}, None) for _ in range(2)]
    calls[0].leave()
    made = [asyncio.ensure_future(call.made()) for call in calls]
    await asyncio.sleep(0)
    calls[1].leave()
    for each in made:
        with pytest.raises(NotProcessed, match="interrupted"):
            await each


async def test_a_job_that_runs_twice_at_once_is_told_so_and_retried_later(redis_url: str, namespace: str) -> None:
    """As arq's and Celery's workers do it: ``retry_after`` is what they defer a job by."""
    executed: list[int] = []
    began, go = asyncio.Event(), asyncio.Event()

    @idempotent(
        key=lambda number: number, payload=lambda number: number, cache=redis_url, namespace=namespace, name="job"
    )
    async def job(context: dict[str, object], number: int) -> int:
        executed.append(number)
        began.set()
        await go.wait()
        return number

    async def worker() -> int:
        while True:
            try:
                return await job({"pool": object()}, 7)
            except InFlightError as error:
                go.set()
                await asyncio.sleep(error.retry_after)

    first = asyncio.ensure_future(worker())
    await began.wait()
    assert list(await asyncio.gather(first, worker())) == [7, 7]
    assert executed == [7]


def test_an_error_says_when_to_come_again_in_another_process_too() -> None:
    error = pickle.loads(pickle.dumps(InFlightError("executing", "record")))
    assert error.retry_after == 1
    assert error.record == "record"
    assert not hasattr(OutcomeUnknownError("?", "record"), "retry_after")
