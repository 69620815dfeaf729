"""`CommandProcessor.process` under attack: odd callables, failures, waits, callers and results, and what time does to it."""

import asyncio
from typing import Any

import pytest

from oncegate import (
    CallerMissing,
    CommandProcessor,
    DuplicateCommandError,
    InFlightError,
    OutcomeUnknownError,
    RecordUnreadable,
)
from oncegate.cache.store import Cache
from tests.middleware.till import Make, Pay, Till, begun


class Pays:
    """Callable, and neither a function nor a coroutine function by itself."""

    def __init__(self) -> None:
        self.paid: list[Any] = []

    async def __call__(self, command: Any) -> int:
        self.paid.append(command)
        return len(self.paid)


@pytest.mark.parametrize("wrapped", [False, True], ids=["callable", "lambda"])
async def test_what_returns_a_coroutine_is_awaited(cache: Cache, namespace: str, wrapped: bool) -> None:
    """Else nothing would be executed, and the success of nothing recorded."""
    pays = Pays()
    execute: Any = (lambda command: pays(command)) if wrapped else pays
    processor = CommandProcessor[Any, int](execute, name="pay", cache=cache, namespace=namespace)
    assert await processor.process(Pay(5), idempotency_key="k") == 1
    assert await processor.process(Pay(5), idempotency_key="k") == 1
    assert len(pays.paid) == 1


async def test_stop_iteration_in_a_thread_is_a_failure_and_not_an_endless_call(cache: Cache, namespace: str) -> None:
    def pay(command: Any) -> Any:
        return next(iter([]))

    processor = CommandProcessor[Any, Any](pay, name="pay", cache=cache, namespace=namespace)
    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(60):
            await processor.process(Pay(5), idempotency_key="k")


async def test_what_ran_out_of_time_is_unknown_whatever_is_made_of_the_cancellation(make: Make) -> None:
    async def stubborn(command: Any) -> Any:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise ValueError("gave up") from None

    processor = make(stubborn, attempt_timeout=0.05, on_error="retry")
    with pytest.raises(ValueError, match="gave up"):
        await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(OutcomeUnknownError):
        await processor.process(Pay(5), idempotency_key="k")


async def test_execution_that_runs_out_of_time_is_unknown(make: Make) -> None:
    processor = make(till := Till(), attempt_timeout=0.05)
    till.gate.clear()
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError):
            await processor.process(Pay(5), idempotency_key="k")
    assert len(till.executed) == 1


@pytest.mark.parametrize("wait", [float("nan"), -1.0, 0.0, float("inf")])
async def test_a_wait_that_is_none_is_not_waited_and_any_is_capped_by_max_wait(make: Make, wait: float) -> None:
    processor = make(till := Till(), max_wait=0.05)
    first = await begun(processor, till)
    with pytest.raises(InFlightError):
        async with asyncio.timeout(60):
            await processor.process(Pay(5), idempotency_key="k", wait=wait)
    till.gate.set()
    await first


async def test_settings_that_are_about_callers_count_here_too(make: Make) -> None:
    processor = make(Till(), raise_on_duplicate=True, require_scope=True)
    with pytest.raises(CallerMissing):
        await processor.process(Pay(5), idempotency_key="k")
    await processor.process(Pay(5), idempotency_key="k", caller="a\udc80")
    with pytest.raises(DuplicateCommandError):
        await processor.process(Pay(5), idempotency_key="k", caller="a\udc80")


async def test_mismatch_is_logged_where_it_is_only_warned_of(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    processor = make(Till(), on_mismatch="warn")
    first = await processor.process(Pay(5), idempotency_key="k")
    assert await processor.process(Pay(6), idempotency_key="k") == first
    assert "another command under a used key" in caplog.text


async def test_codec_of_the_callers_own_keeps_what_json_does_not(cache: Cache, namespace: str) -> None:
    class Pickled:
        def dump(self, result: complex) -> bytes:
            return f"{result.real} {result.imag}".encode()

        def load(self, data: bytes) -> complex:
            real, imaginary = data.split()
            return complex(float(real), float(imaginary))

    async def pay(command: Any) -> complex:
        return 1 + 2j

    def processor(**options: Any) -> CommandProcessor[Any, complex]:
        return CommandProcessor(pay, name="pay", cache=cache, namespace=namespace, **options)

    assert await processor(codec=Pickled()).process(Pay(5), idempotency_key="k") == 1 + 2j
    assert await processor(codec=Pickled()).process(Pay(5), idempotency_key="k") == 1 + 2j
    with pytest.raises(RecordUnreadable):  # an error, never a miss
        await processor(result_type=int).process(Pay(5), idempotency_key="k")
    with pytest.raises(ValueError, match="exclude each other"):
        processor(result_type=int, codec=Pickled())


async def test_failure_whose_caller_has_left_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    processor = make(till := Till())
    till.instead = [ValueError("declined")]
    call = await begun(processor, till)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    till.gate.set()
    assert await processor.drain(30) == 0
    assert "after its caller had left" in caplog.text


async def test_execution_that_runs_out_of_time_while_the_process_ends_is_unknown_at_once(make: Make) -> None:
    processor = make(till := Till(), attempt_timeout=1)
    call = await begun(processor, till)
    assert await processor.drain(30) == 0
    with pytest.raises(OutcomeUnknownError):
        await call
