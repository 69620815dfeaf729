"""Handlers of every kind: what they are given, what is kept of what they return, and what is wrong with one."""

import asyncio
import functools
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from oncegate import NotRetryable
from oncegate.app.commands.executor import context_of
from oncegate.app.commands.handler import Handler, HandlerError, find_handler
from oncegate.cache.record import StoredResponse
from oncegate.cache.redis.streams.stream import Command
from oncegate.middleware.consumers.command_context import CommandContext


class Payment(BaseModel):
    amount: int
    secret: str = ""

    @model_validator(mode="after")
    def _sane(self) -> "Payment":
        if self.amount < 0:
            raise ValueError("an amount is not negative")
        return self


@dataclass
class Booking:
    seat: str


async def confirm() -> None:
    """The attempt is ours."""


def command(body: bytes) -> Command:
    return Command("k:s", "order-17", bytes(16), "POST", "/payments?a=1", "*", body, correlation="c-1")


async def call(function: Any, body: bytes = b'{"amount": 5}') -> StoredResponse:
    handler = Handler(function, threads=1)
    submitted = command(body)
    try:
        return await handler.execute(submitted, context_of(submitted, "1-0", 2, ()), confirm)
    finally:
        await handler.close()


async def test_a_payload_is_a_dict_unless_the_handler_says_otherwise() -> None:
    def plain(payload):  # type: ignore[no-untyped-def]  # that is the case
        return type(payload).__name__

    def annotated(payload: dict) -> str:  # type: ignore[type-arg]  # as many write it
        return type(payload).__name__

    def model(payload: Payment) -> str:
        return type(payload).__name__

    def record(payload: Booking) -> str:
        return type(payload).__name__

    def raw(payload: bytes) -> str:
        return payload.decode()

    assert (await call(plain)).body == b'"dict"'
    assert (await call(annotated)).body == b'"dict"'
    assert (await call(model)).body == b'"Payment"'
    assert (await call(record, b'{"seat": "1a"}')).body == b'"Booking"'
    assert (await call(raw, b"no json")).body == b'"no json"'


async def test_a_large_number_in_a_payload_is_what_it_was() -> None:
    def same(payload: dict[str, Any]) -> str:
        return str(payload["n"])

    assert (await call(same, b'{"n": 123456789012345678901234567890}')).body == b'"123456789012345678901234567890"'


async def test_a_handler_may_be_sync_or_async_or_hide_that_it_is() -> None:
    async def in_the_loop(payload: dict[str, Any]) -> bool:
        return threading.current_thread() is threading.main_thread()

    def in_a_thread(payload: dict[str, Any]) -> bool:
        return threading.current_thread() is threading.main_thread()

    class Callable:
        async def __call__(self, payload: dict[str, Any]) -> str:
            return "object"

    @functools.wraps(in_the_loop)
    def hidden(payload: dict[str, Any]) -> Any:
        return in_the_loop(payload)

    assert (await call(in_the_loop)).body == b"true"
    assert (await call(in_a_thread)).body == b"false"
    assert (await call(Callable())).body == b'"object"'
    assert (await call(hidden)).body == b"true"


async def test_what_may_be_the_context_gets_it() -> None:
    def optional(payload: dict[str, Any], context: CommandContext | None = None) -> bool:
        return context is not None

    def anything(payload: dict[str, Any], context: object) -> bool:
        return isinstance(context, CommandContext)

    def other(payload: dict[str, Any], times: int = 1) -> int:
        return times

    def bare(payload, context):  # type: ignore[no-untyped-def]  # that is the case
        return isinstance(context, CommandContext)

    assert [(await call(each)).body for each in (optional, anything, bare)] == [b"true"] * 3
    assert (await call(other)).body == b"1"


def test_a_handler_whose_annotations_contradict_its_places_is_refused() -> None:
    def turned_round(context: CommandContext, payload: dict[str, Any]) -> None: ...

    def two_payloads(payload: dict[str, Any], amount: int) -> None: ...

    for function, reason in ((turned_round, "change their places"), (two_payloads, "is annotated int")):
        with pytest.raises(HandlerError, match=reason):
            Handler(function, threads=1)


async def test_the_second_parameter_is_the_context() -> None:
    def handler(payload: dict[str, Any], context: CommandContext) -> list[Any]:
        return [context.key, context.attempt, context.record, context.entry, context.target, context.headers]

    assert (await call(handler)).body == (
        b'["order-17",2,"k:s","1-0","/payments?a=1",'
        b'{"Idempotency-Key":"order-17","Idempotency-Attempt":"2","X-Correlation-ID":"c-1"}]'
    )


async def test_an_optional_second_parameter_of_another_kind_is_left_alone() -> None:
    def handler(payload: dict[str, Any], unit: str = "EUR") -> str:
        return unit

    assert (await call(handler)).body == b'"EUR"'


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"amount": "many"}', b"{}", b'{"amount": -1}', b"\xff"])
async def test_a_payload_that_does_not_fit_is_never_tried_again_and_not_quoted(body: bytes) -> None:
    def handler(payment: Payment) -> None:
        raise AssertionError

    with pytest.raises(NotRetryable) as raised:
        await call(handler, body)
    assert "\n" not in str(raised.value)
    assert "many" not in str(raised.value)


async def test_a_payload_that_nests_too_deep_is_refused() -> None:
    def handler(payload: dict[str, Any]) -> None:
        raise AssertionError

    with pytest.raises(NotRetryable):
        await call(handler, b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


async def test_a_result_that_can_not_be_kept_is_a_success_without_one() -> None:
    def odd(payload: dict[str, Any]) -> object:
        return object()

    def large(payload: dict[str, Any]) -> str:
        return "x" * 2000

    kept = await call(odd)
    assert (kept.status, kept.body) == (200, None)
    assert (await call(large)).body == b'"' + b"x" * 2000 + b'"'  # the subscription has a limit


async def test_a_result_is_kept_as_json_with_its_type() -> None:
    def handler(payment: Payment) -> Payment:
        return payment

    kept = await call(handler)
    assert (kept.headers, kept.body) == (((b"content-type", b"application/json"),), b'{"amount":5,"secret":""}')


async def test_nothing_is_called_when_the_attempt_is_not_confirmed() -> None:
    called = []

    async def not_ours() -> None:
        raise RuntimeError("not ours")

    submitted = command(b"{}")
    handler = Handler(lambda payload: called.append(payload), threads=1)
    with pytest.raises(RuntimeError, match="not ours"):
        await handler.execute(submitted, context_of(submitted, "1-0", 1, ()), not_ours)
    await handler.close()
    assert called == []


async def test_stop_iteration_out_of_a_thread_does_not_hang() -> None:
    def handler(payload: dict[str, Any]) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await call(handler)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_a_handler_raises_comes_out_and_ends_no_event_loop(kind: type[BaseException]) -> None:
    def leave(payload: dict[str, Any]) -> None:
        raise kind

    async def leave_async(payload: dict[str, Any]) -> None:
        raise kind

    for handler in (leave, leave_async):
        with pytest.raises(kind):
            await call(handler)


async def test_a_cancellation_inside_of_a_handler_is_its_failure() -> None:
    async def cancelled(payload: dict[str, Any]) -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    with pytest.raises(RuntimeError, match="cancelled"):
        await call(cancelled)


def test_what_executes_nothing_when_it_is_called_is_refused() -> None:
    async def streams(payload: dict[str, Any]) -> Any:
        yield payload

    def yields(payload: dict[str, Any]) -> Any:
        yield payload

    class Streams:
        async def __call__(self, payload: dict[str, Any]) -> Any:
            yield payload

    @functools.wraps(yields)
    def decorated(payload: dict[str, Any]) -> Any:
        return yields(payload)

    generators: tuple[Any, ...] = (streams, yields, decorated, Streams())
    for function, why in (*[(each, "generator") for each in generators], (Booking, "class")):
        with pytest.raises(HandlerError, match=why):
            Handler(function, threads=1)


async def test_a_call_that_is_cut_is_cut() -> None:
    async def hang(payload: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await call(hang)


def no_parameters() -> None: ...


def three(a: Any, b: Any, c: Any) -> None: ...


def keyword_only(a: Any, *, needed: Any) -> None: ...


def of_no_type(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # that is the case


def of_a_module(a: threading.Lock) -> None: ...


@pytest.mark.parametrize("function", [no_parameters, three, keyword_only, of_no_type, of_a_module])
def test_a_function_that_can_not_take_a_command_is_refused(function: Any) -> None:
    with pytest.raises(HandlerError):
        Handler(function, threads=1)


def test_a_handler_is_found_by_its_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here.py").write_text("class Shop:\n    @staticmethod\n    def book(payload): ...\nnumber = 5\n")
    (tmp_path / "broken_here.py").write_text("raise LookupError('no\\nsecond line')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    assert find_handler("found_here:Shop.book").__name__ == "book"
    for name, why in {
        "found_here": "is named package.module:function",
        "found_here:nothing": "has no nothing",
        "found_here:number": "can't be called",
        "nowhere_here:f": "can't be imported: ModuleNotFoundError",
        "broken_here:f": "can't be imported: LookupError: no second line",
    }.items():
        with pytest.raises(HandlerError, match=why):
            find_handler(name)
