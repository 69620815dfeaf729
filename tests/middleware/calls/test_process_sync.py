"""`SyncCommandProcessor`: callers in threads, at the end, after a fork, and where it can't work.

Rules of docs/contract.md: R12.4.
"""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest

from oncegate import CommandProcessor, InFlightError, MemoryCache, OutcomeUnknownError, RedisCache, SyncCommandProcessor
from oncegate.cache.store import Cache
from tests.middleware.decorated import PATIENCE, Till


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[Cache]:
    """The processor closes it: nobody else has an event loop to do so."""
    if request.param == "memory":
        yield MemoryCache()
    else:
        yield RedisCache.from_url(request.getfixturevalue("redis_url"), timeout=PATIENCE)


def processor(till: Any, store: Cache, namespace: str) -> CommandProcessor[Any, dict[str, int]]:
    return CommandProcessor(till, name="pay", cache=store, namespace=namespace)


def test_of_many_threads_one_executes(store: Cache, namespace: str) -> None:
    till = Till()
    with SyncCommandProcessor(processor(till, store, namespace)) as door, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(door.process, {"n": 1}, idempotency_key="k", wait=PATIENCE) for _ in range(8)]
        assert [call.result() for call in calls] == [{"number": 1}] * 8
    assert len(till.paid) == 1


def test_closing_waits_for_executions_and_ends_those_who_only_wait(namespace: str) -> None:
    till = Till()
    till.go.clear()
    door = SyncCommandProcessor(processor(till, MemoryCache(), namespace))
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(door.process, 1, idempotency_key="k")
        assert till.began.wait(PATIENCE)
        with pytest.raises(InFlightError):
            door.process(1, idempotency_key="k")
        door.close(timeout=0.01)
        with pytest.raises(CancelledError):
            first.result(PATIENCE)
        till.go.set()
    door.close()
    with pytest.raises(RuntimeError, match="closed"):
        door.process(1, idempotency_key="k")


def test_closing_lets_an_execution_end(store: Cache, namespace: str) -> None:
    till = Till()
    till.go.clear()
    door = SyncCommandProcessor(processor(till, store, namespace))
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(door.process, 1, idempotency_key="k")
        assert till.began.wait(PATIENCE)
        closing = threads.submit(door.close)
        till.go.set()
        closing.result(PATIENCE)
        assert first.result(PATIENCE) == {"number": 1}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_is_raised_to_its_caller_and_ends_no_loop(
    store: Cache, namespace: str, kind: type[BaseException]
) -> None:
    """It used to end the loop's thread, and every call from then on waited for ever."""

    def pay(command: Any) -> dict[str, int]:
        if command == "end":
            raise kind
        return {"number": 1}

    with SyncCommandProcessor(processor(pay, store, namespace)) as door:
        with pytest.raises(kind):
            door.process("end", idempotency_key="k")
        with pytest.raises(OutcomeUnknownError):
            door.process("end", idempotency_key="k")
        assert door.process(1, idempotency_key="l") == {"number": 1}


def test_closing_closes_the_cache(namespace: str) -> None:
    class Watched(MemoryCache):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    store = Watched()
    with SyncCommandProcessor(processor(Till(), store, namespace)) as door:
        assert store.closed == 0
    door.close()
    assert store.closed == 1


def test_a_call_from_its_own_loop_is_refused_and_not_endless(namespace: str) -> None:
    async def pay(command: Any) -> dict[str, int]:
        return door.process(command, idempotency_key="inner")

    with SyncCommandProcessor(processor(pay, MemoryCache(), namespace)) as door:
        with pytest.raises(RuntimeError, match="await CommandProcessor"):
            door.process(1, idempotency_key="k")
        assert asyncio.run(_elsewhere(door)) == {"number": 1}


async def _elsewhere(door: Any) -> Any:
    with SyncCommandProcessor(processor(Till(), MemoryCache(), "elsewhere")) as other:
        return await asyncio.to_thread(other.process, 1, idempotency_key="k")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_is_told_so(namespace: str) -> None:
    with SyncCommandProcessor(processor(Till(), MemoryCache(), namespace)) as door:
        child = os.fork()
        if child == 0:
            try:
                door.process(1, idempotency_key="k")
            except RuntimeError as error:
                os._exit(7 if "fork" in str(error) else 1)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
