"""`idempotent`: a decorated function is executed once per key, by the rules of `CommandProcessor`.

Rules of docs/contract.md: R12.11.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from oncegate import (
    CommandFailedError,
    DuplicateCommandError,
    IdempotencySettings,
    InFlightError,
    KeyReusedError,
    NotProcessed,
    OutcomeUnknown,
    OutcomeUnknownError,
    idempotent,
)
from tests.middleware.decorated import PATIENCE, Order, Receipt, Till

Call = Callable[..., Any]
Charge = Callable[..., Call]


@pytest.fixture(params=["async", "plain"])
async def charge(request: pytest.FixtureRequest, till: Till, options: dict[str, Any]) -> AsyncIterator[Charge]:
    """Decorates ``charge``, a coroutine function or a plain one; to be awaited either way."""

    def decorated(**more: Any) -> Call:
        decorate = idempotent(**{"key": lambda order: order.id, **options, **more})

        @decorate
        async def charge(order: Order, currency: str = "EUR", *, note: Any = None) -> Receipt:
            return Receipt(number=await asyncio.to_thread(till.pay, order))

        @decorate
        def charge_plainly(order: Order, currency: str = "EUR", *, note: Any = None) -> Receipt:
            return Receipt(number=till.pay(order))

        async def in_thread(*args: Any, **kwargs: Any) -> Receipt:
            return await asyncio.to_thread(charge_plainly, *args, **kwargs)

        return charge if request.param == "async" else in_thread

    yield decorated
    till.go.set()


# -- what a second call gets


async def test_a_second_call_gets_what_the_first_one_returned(charge: Charge, till: Till) -> None:
    call = charge()
    first = await call(Order("a"))
    assert await call(order=Order("a"), currency="EUR") == first == Receipt(number=1)
    assert await call(Order("b")) == Receipt(number=2)
    assert [order.id for order in till.paid] == ["a", "b"]


async def test_other_arguments_under_a_used_key_are_refused(charge: Charge, till: Till) -> None:
    call = charge()
    await call(Order("a"))
    for other in (call(Order("a", Decimal(6))), call(Order("a"), "USD"), call(Order("a"), note=1)):
        with pytest.raises(KeyReusedError):
            await other
    assert len(till.paid) == 1


async def test_a_duplicate_is_told_of_with_the_original_result_where_that_is_wanted(charge: Charge) -> None:
    call = charge(raise_on_duplicate=True)
    await call(Order("a"))
    with pytest.raises(DuplicateCommandError) as raised:
        await call(Order("a"))
    assert raised.value.original_result == Receipt(number=1)


async def test_of_many_concurrent_calls_one_executes_and_the_others_are_told_when_to_come_again(
    charge: Charge, till: Till
) -> None:
    call, waiting = charge(), charge(wait=PATIENCE)
    till.go.clear()
    first = asyncio.ensure_future(call(Order("a")))
    await asyncio.to_thread(till.began.wait, PATIENCE)
    others = await asyncio.gather(*(call(Order("a")) for _ in range(5)), return_exceptions=True)
    for error in others:
        assert isinstance(error, InFlightError)
        assert (error.retryable, error.retry_after) == (True, 1)
    later = [asyncio.ensure_future(waiting(Order("a"))) for _ in range(5)]
    till.go.set()
    assert await asyncio.gather(first, *later) == [Receipt(number=1)] * 6
    assert len(till.paid) == 1


async def test_a_failure_is_raised_and_retried_by_default(charge: Charge, till: Till) -> None:
    call = charge()
    till.instead = [ValueError("declined")]
    with pytest.raises(ValueError, match="declined"):
        await call(Order("a"))
    assert await call(Order("a")) == Receipt(number=2)


async def test_a_failure_is_kept_where_the_settings_say_so(charge: Charge, till: Till) -> None:
    call = charge(settings=IdempotencySettings(on_error="replay"), error_ttl=3600)
    till.instead = [ValueError("declined")]
    with pytest.raises(ValueError, match="declined"):
        await call(Order("a"))
    with pytest.raises(CommandFailedError, match="declined"):
        await call(Order("a"))
    assert len(till.paid) == 1


async def test_what_was_not_processed_leaves_the_key_free_and_what_nobody_knows_does_not(
    charge: Charge, till: Till
) -> None:
    call = charge()
    till.instead = [NotProcessed("no connection"), OutcomeUnknown("the line went dead")]
    with pytest.raises(NotProcessed):
        await call(Order("a"))
    with pytest.raises(OutcomeUnknown):
        await call(Order("a"))
    with pytest.raises(OutcomeUnknownError):
        await call(Order("a"))
    assert len(till.paid) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_raised_and_of_unknown_outcome(
    till: Till, namespace: str, redis_url: str, kind: type[BaseException]
) -> None:
    @idempotent(key=lambda order: order.id, cache=redis_url, namespace=namespace)
    def charge(order: Order) -> int:
        return till.pay(order)

    till.instead = [kind()]
    with pytest.raises(kind):
        charge(Order("a"))
    with pytest.raises(OutcomeUnknownError):
        charge(Order("a"))
    assert charge(Order("b")) == 2


async def test_a_call_that_is_cancelled_goes_on_and_its_result_is_kept(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, wait=PATIENCE, **options)
    async def charge(order: Order) -> int:
        return await asyncio.to_thread(till.pay, order)

    till.go.clear()
    call = asyncio.ensure_future(charge(Order("a")))
    await asyncio.to_thread(till.began.wait, PATIENCE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    till.go.set()
    assert await charge(Order("a")) == 1


async def test_a_plain_function_out_of_time_is_of_unknown_outcome_when_it_returns(
    till: Till, options: dict[str, Any]
) -> None:
    rules = IdempotencySettings(attempt_timeout=1, response_timeout=1)  # until a thread has begun

    @idempotent(key=lambda order: order.id, settings=rules, **options)
    def charge(order: Order) -> int:
        return till.pay(order)

    till.go.clear()
    call = asyncio.ensure_future(asyncio.to_thread(charge, Order("a")))
    await asyncio.to_thread(till.began.wait, PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while not isinstance(await _raised(charge, Order("a")), OutcomeUnknownError):
            pass
    assert not call.done()
    till.go.set()
    with pytest.raises(OutcomeUnknownError, match="attempt_timeout"):
        await call


async def _raised(call: Call, *args: Any) -> BaseException | None:
    try:
        await asyncio.to_thread(call, *args)
    except Exception as error:
        return error
    return None


# -- where a plain function runs


def test_a_plain_function_runs_in_the_thread_that_calls_it(options: dict[str, Any]) -> None:
    """A connection of sqlite3's is for the thread that has opened it, as a transaction of Django's is."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE payments (id TEXT)")

    @idempotent(key=lambda order: order.id, **options)
    def charge(order: Order) -> int | None:
        return database.execute("INSERT INTO payments VALUES (?)", (order.id,)).lastrowid

    with database:
        assert [charge(Order("a")), charge(Order("a")), charge(Order("b"))] == [1, 1, 2]
    database.close()


def test_of_many_threads_one_executes(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, wait=PATIENCE, **options)
    def charge(order: Order) -> int:
        return till.pay(order)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(charge, [Order("a")] * 32)) == [1] * 32
    assert len(till.paid) == 1


def test_a_plain_function_may_call_another_and_be_called_in_an_event_loop(till: Till, options: dict[str, Any]) -> None:
    @idempotent(key=lambda order: order.id, **options)
    def charge(order: Order) -> int:
        return till.pay(order)

    @idempotent(key=lambda order: order.id, **options)
    def order_and_charge(order: Order) -> int:
        return charge(order)

    async def main() -> int:
        return order_and_charge(Order("a"))

    assert [asyncio.run(main()), order_and_charge(Order("a")), charge(Order("a"))] == [1, 1, 1]
