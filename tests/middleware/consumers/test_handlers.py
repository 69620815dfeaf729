"""Handlers under the hook: what they return, raise, and what a cancellation in the middle of one means."""

import asyncio
import threading
from typing import Any

import pytest
from pydantic import BaseModel

from oncegate import Action, Begun, Delivery, DeliveryDecision, NotProcessed, NotRetryable, OutcomeUnknown, Subscription
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State, StoredResponse
from testing.waiting import until
from tests.middleware.conftest import MakeSubscription
from tests.middleware.deliveries import PAY, Records
from tests.middleware.door import PATIENCE


class Receipt(BaseModel):
    number: int


class Handler:
    """Counts its calls; returns or raises what it is given; with ``held``, only after `release`."""

    def __init__(self, result: Any = None, *, held: bool = False) -> None:
        self.calls = 0
        self.result = result
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()

    async def __call__(self) -> Any:
        self.calls += 1
        self.began.set()
        await self.gate.wait()
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


class Blocking:
    """A plain function that blocks its thread until it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = threading.Event()

    def __call__(self) -> dict[str, int]:
        self.calls += 1
        assert self.gate.wait(PATIENCE)
        return {"calls": self.calls}


@pytest.mark.parametrize(
    ("returned", "kept"),
    [
        (None, b"null"),
        ({"a": [1, 2.5]}, b'{"a":[1,2.5]}'),
        (Receipt(number=7), b'{"number":7}'),
        (StoredResponse(201, (), b"raw", 1), b"raw"),
        (object(), None),
    ],
)
async def test_a_result_is_kept_as_json_or_the_success_without_it(
    subscribe: MakeSubscription, returned: Any, kept: bytes | None
) -> None:
    handler = Handler(returned)
    first = await subscribe("ledger").execute(PAY, handler)
    assert (first.action, first.execution.returned) == (Action.ACKNOWLEDGE, returned)
    again = await subscribe("ledger").execute(PAY, handler)
    assert (again.decision, again.action, again.result) == (DeliveryDecision.DUPLICATE, Action.ACKNOWLEDGE, kept)
    assert handler.calls == 1


@pytest.mark.parametrize(
    ("raised", "state", "action"),
    [
        (ValueError("no"), State.FAILED, Action.REDELIVER),
        (TimeoutError("the handler's own"), State.FAILED, Action.REDELIVER),
        (NotRetryable("no such account"), State.FAILED, Action.DEAD_LETTER),
        (OutcomeUnknown("the connection broke"), State.UNKNOWN, Action.REDELIVER),
        (NotProcessed("no connection"), None, Action.REDELIVER),
    ],
)
async def test_what_a_handler_raises_says_what_follows(
    subscribe: MakeSubscription, records: Records, raised: Exception, state: State | None, action: Action
) -> None:
    begun = await subscribe("ledger").execute(PAY, Handler(raised))
    assert (begun.action, begun.execution.raised) == (action, raised)
    assert await records.state("ledger") is state


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("raised", "body"),
    [
        (Unspeakable(), b'{"type":"Unspeakable","message":""}'),
        (ValueError("\ud800"), b'{"type":"ValueError","message":"\\\\ud800"}'),
        (ValueError("x" * 9000), b'{"type":"ValueError","message":"' + b"x" * 8192 + b'"}'),
    ],
)
async def test_an_error_is_kept_as_type_and_text_whatever_it_is(
    subscribe: MakeSubscription, records: Records, raised: Exception, body: bytes
) -> None:
    await subscribe("ledger").execute(PAY, Handler(raised))
    assert await records.kept("ledger") == (State.FAILED, 1, body)


async def test_a_decorated_handler_gets_its_message_and_more(subscribe: MakeSubscription) -> None:
    calls: list[Any] = []

    def describe(message: dict[str, Any]) -> Delivery:
        return Delivery(message["key"], message["body"])

    @subscribe("ledger").handler(describe)
    async def pay(message: dict[str, Any], *, dry: bool) -> dict[str, int]:
        """Pays."""
        calls.append((message["key"], dry))
        return {"number": len(calls)}

    message = {"key": "key-1", "body": b"{}"}
    assert (await pay(message, dry=True)).action is Action.ACKNOWLEDGE
    again = await pay(message, dry=True)
    assert (again.action, again.result) == (Action.ACKNOWLEDGE, b'{"number":1}')
    assert calls == [("key-1", True)]
    assert pay.__doc__ == "Pays."


# -- cancelled, out of time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_is_cancelled_inside_a_handler_is_its_failure_and_not_its_consumer_s_end(
    subscribe: MakeSubscription, records: Records, in_thread: bool
) -> None:
    def plain() -> None:
        raise asyncio.CancelledError

    handler = plain if in_thread else Handler(asyncio.CancelledError())
    begun = await subscribe("ledger").execute(PAY, handler)
    assert begun.action is Action.REDELIVER
    assert isinstance(begun.execution.raised, RuntimeError)
    assert await records.state("ledger") is State.FAILED


@pytest.mark.parametrize("in_batch", [False, True])
async def test_a_cancelled_handler_leaves_an_unknown_outcome_not_a_failure(
    subscribe: MakeSubscription, records: Records, in_batch: bool
) -> None:
    handler = Handler(held=True)

    async def batch(_: list[Any]) -> None:
        await handler()

    ledger = subscribe("ledger")
    executing = ledger.execute_many([PAY], batch, [0]) if in_batch else ledger.execute(PAY, handler)
    task: asyncio.Task[Any] = asyncio.create_task(executing)
    await handler.began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await records.state("ledger") is State.UNKNOWN
    again = await subscribe("ledger").begin(PAY)
    assert (again.run, again.attempt) == (True, 2)
    await again.execution.succeed()


async def test_a_handler_that_runs_out_of_time_leaves_an_unknown_outcome(
    subscribe: MakeSubscription, records: Records
) -> None:
    begun = await subscribe("ledger", attempt_timeout=0.05).execute(PAY, Handler(held=True))
    assert begun.action is Action.REDELIVER
    assert isinstance(begun.execution.raised, TimeoutError)
    assert await records.state("ledger") is State.UNKNOWN


async def test_an_error_that_a_handler_makes_of_its_time_out_is_no_failure(
    subscribe: MakeSubscription, records: Records
) -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            raise RuntimeError("interrupted") from None

    await subscribe("ledger", attempt_timeout=0.05).execute(PAY, handler)
    assert await records.state("ledger") is State.UNKNOWN


async def test_a_plain_function_runs_in_a_thread(subscribe: MakeSubscription) -> None:
    def handler() -> int:
        return threading.get_ident()

    first = await subscribe("ledger").execute(PAY, handler)
    assert first.action is Action.ACKNOWLEDGE
    assert first.execution.returned != threading.get_ident()

    def stops() -> None:
        raise StopIteration

    assert (await subscribe("mail").execute(PAY, stops)).action is Action.REDELIVER


async def test_a_thread_whose_consumer_was_cancelled_ends_and_is_recorded(subscribe: MakeSubscription) -> None:
    ledger = subscribe("ledger")
    task = asyncio.create_task(ledger.execute(PAY, handler := Blocking()))
    await until(lambda: handler.calls == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await subscribe("ledger").begin(PAY)).decision is DeliveryDecision.IN_FLIGHT
    handler.gate.set()
    assert await ledger.drain(PATIENCE) == 0
    assert (await subscribe("ledger").begin(PAY)).result == b'{"calls":1}'


async def test_a_thread_that_runs_out_of_time_is_redelivered_and_recorded_when_it_ends(
    subscribe: MakeSubscription, records: Records
) -> None:
    begun = await subscribe("ledger", attempt_timeout=0.05).execute(PAY, handler := Blocking())
    assert begun.action is Action.REDELIVER
    assert (await subscribe("ledger").begin(PAY)).decision is DeliveryDecision.IN_FLIGHT
    handler.gate.set()

    await records.until("ledger", State.SUCCEEDED)


def test_a_thread_at_work_when_its_process_ends_keeps_its_lease() -> None:
    """All tasks are cancelled then, as `asyncio.run` does it: a record that read unknown would be taken over at once."""
    cache = MemoryCache()
    handler = Blocking()
    with asyncio.Runner() as runner:

        async def begin() -> "asyncio.Task[Begun]":
            task = asyncio.create_task(Subscription("ledger", cache=cache, namespace="n").execute(PAY, handler))
            await until(lambda: handler.calls == 1)
            return task

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        executing = runner.run(begin())
        runner.run(end())
        assert executing.cancelled()
        assert runner.run(Records(cache, "n").state("ledger")) is State.IN_FLIGHT
        handler.gate.set()
