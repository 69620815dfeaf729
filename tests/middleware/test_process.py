"""`CommandProcessor.process`: the Python door, held to the same promises as HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from oncegate import (
    CallerMissing,
    CommandFailedError,
    CommandProcessor,
    DuplicateCommandError,
    IdempotencySettings,
    InFlightError,
    KeyInvalid,
    KeyMissing,
    KeyReusedError,
    MemoryCache,
    NotProcessed,
    OutcomeUnknown,
    OutcomeUnknownError,
    RecordUnreadable,
)
from oncegate.cache.base import Cache


@dataclass
class Pay:
    amount: int
    to: str = "shop"


class Receipt(BaseModel):
    number: int


class Till:
    """Executes payments: counts them, and does what it is told instead of the next ones."""

    def __init__(self) -> None:
        self.executed: list[Any] = []
        self.instead: list[Exception] = []
        self.began = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, command: Any) -> Any:
        self.executed.append(command)
        self.began.set()
        await self.gate.wait()
        if self.instead:
            raise self.instead.pop(0)
        return {"number": len(self.executed)}


Make = Callable[..., CommandProcessor[Any, Any]]


@pytest.fixture
async def make(cache: Cache, namespace: str) -> AsyncIterator[Make]:
    made: list[CommandProcessor[Any, Any]] = []

    def make(till: Any, *, result_type: Any = Any, **settings: Any) -> CommandProcessor[Any, Any]:
        async def execute(command: Any) -> Any:
            return await till(command)

        made.append(
            CommandProcessor(
                execute,
                name="pay",
                cache=cache,
                namespace=namespace,
                settings=IdempotencySettings(**settings),
                result_type=result_type,
            )
        )
        return made[-1]

    yield make
    for processor in made:
        assert await processor.drain(30) == 0


async def test_second_call_gets_the_first_ones_result(make: Make) -> None:
    processor = make(till := Till())
    first = await processor.process(Pay(5), idempotency_key="k")
    assert await processor.process(Pay(5), idempotency_key="k") == first == {"number": 1}
    assert len(till.executed) == 1


async def test_raise_on_duplicate_carries_the_original_result(make: Make) -> None:
    processor = make(Till())
    await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(DuplicateCommandError) as raised:
        await processor.process(Pay(5), idempotency_key="k", raise_on_duplicate=True)
    assert raised.value.original_result == {"number": 1}
    assert not raised.value.omitted


async def test_without_a_key_nothing_is_enforced_even_with_raise_on_duplicate(make: Make) -> None:
    processor = make(till := Till())
    await processor.process(Pay(5), raise_on_duplicate=True)
    await processor.process(Pay(5), raise_on_duplicate=True)
    assert len(till.executed) == 2


async def test_another_command_under_a_used_key_is_refused(make: Make) -> None:
    processor = make(till := Till())
    await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(KeyReusedError):
        await processor.process(Pay(6), idempotency_key="k")
    assert len(till.executed) == 1


@pytest.mark.parametrize(
    ("command", "same"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        (Pay(5, "x"), {"to": "x", "amount": 5}),
        (Receipt(number=3), {"number": 3}),
    ],
    ids=["dict", "dataclass", "model"],
)
async def test_commands_are_compared_by_their_json_form(make: Make, command: Any, same: Any) -> None:
    processor = make(till := Till())
    await processor.process(command, idempotency_key="k")
    await processor.process(same, idempotency_key="k")
    assert len(till.executed) == 1


async def test_command_without_a_json_form_is_refused_before_its_effect(make: Make) -> None:
    processor = make(till := Till())
    with pytest.raises(TypeError):
        await processor.process({"a": object()}, idempotency_key="k")
    assert not till.executed


async def test_callers_do_not_meet_each_others_results(make: Make) -> None:
    processor = make(till := Till())
    await processor.process(Pay(5), idempotency_key="k", caller="a")
    await processor.process(Pay(5), idempotency_key="k", caller="b")
    await processor.process(Pay(5), idempotency_key="k")
    assert len(till.executed) == 3


async def test_failure_is_raised_and_by_default_retried(make: Make) -> None:
    processor = make(till := Till())
    till.instead = [ValueError("declined")]
    with pytest.raises(ValueError, match="declined"):
        await processor.process(Pay(5), idempotency_key="k")
    assert await processor.process(Pay(5), idempotency_key="k") == {"number": 2}


async def test_failure_is_replayed_where_the_policy_says_so(make: Make) -> None:
    processor = make(till := Till(), on_error="replay")
    till.instead = [ValueError("declined")]
    with pytest.raises(ValueError, match="declined"):
        await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(CommandFailedError, match="declined") as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.kind == "ValueError"
    assert len(till.executed) == 1


async def test_command_that_was_not_processed_leaves_its_key_free(make: Make) -> None:
    processor = make(till := Till(), on_error="replay")
    till.instead = [NotProcessed("no connection")]
    with pytest.raises(NotProcessed):
        await processor.process(Pay(5), idempotency_key="k")
    assert await processor.process(Pay(5), idempotency_key="k") == {"number": 2}


async def test_unknown_outcome_refuses_the_next_call(make: Make) -> None:
    processor = make(till := Till())
    till.instead = [OutcomeUnknown("the line went dead")]
    with pytest.raises(OutcomeUnknown):
        await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(OutcomeUnknownError):
        await processor.process(Pay(5), idempotency_key="k")
    assert len(till.executed) == 1


async def test_concurrent_call_is_refused_or_waits(make: Make) -> None:
    processor = make(till := Till())
    till.gate.clear()
    first = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k"))
    await till.began.wait()
    with pytest.raises(InFlightError) as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.retryable
    waiting = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k", wait=30))
    till.gate.set()
    assert await first == await waiting == {"number": 1}


async def test_cancelled_call_does_not_end_its_execution(make: Make) -> None:
    processor = make(till := Till())
    till.gate.clear()
    call = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k"))
    await till.began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    till.gate.set()
    assert await processor.process(Pay(5), idempotency_key="k", wait=30) == {"number": 1}


async def test_result_type_is_given_back_on_a_replay(make: Make) -> None:
    async def receipt(command: Any) -> Receipt:
        return Receipt(number=7)

    processor = make(receipt, result_type=Receipt)
    await processor.process(Pay(5), idempotency_key="k")
    assert await processor.process(Pay(5), idempotency_key="k") == Receipt(number=7)


async def test_result_that_cannot_be_stored_is_recorded_without_its_body(make: Make) -> None:
    async def unstorable(command: Any) -> object:
        return object()

    processor = make(unstorable)
    await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(DuplicateCommandError) as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.omitted


async def test_result_type_that_cannot_be_stored_fails_at_construction() -> None:
    with pytest.raises(Exception, match="schema"):
        CommandProcessor(Till(), name="pay", cache=MemoryCache(), result_type=Till)


@pytest.mark.parametrize("key", ["", "k" * 256])
async def test_key_of_a_wrong_length_is_refused(make: Make, key: str) -> None:
    processor = make(till := Till())
    with pytest.raises(KeyInvalid):
        await processor.process(Pay(5), idempotency_key=key)
    assert not till.executed


async def test_required_key_is_required(make: Make) -> None:
    with pytest.raises(KeyMissing):
        await make(Till(), require_key=True).process(Pay(5))


# -- attacks ----------------------------------------------------------------------------------------------------------


async def test_failure_that_cannot_be_put_into_words_is_still_recorded(make: Make) -> None:
    processor = make(till := Till(), on_error="replay")
    till.instead = [ValueError("file \udc80")]
    with pytest.raises(ValueError, match="file"):
        await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(CommandFailedError):
        await processor.process(Pay(5), idempotency_key="k")
    assert len(till.executed) == 1


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
        async with asyncio.timeout(20):
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


@pytest.mark.parametrize("wait", [float("nan"), -1.0, 0.0])
async def test_a_wait_that_is_none_is_not_waited(make: Make, wait: float) -> None:
    processor = make(till := Till())
    till.gate.clear()
    first = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k"))
    await till.began.wait()
    with pytest.raises(InFlightError):
        async with asyncio.timeout(20):
            await processor.process(Pay(5), idempotency_key="k", wait=wait)
    till.gate.set()
    await first


async def test_a_wait_is_capped_by_max_wait(make: Make) -> None:
    processor = make(till := Till(), max_wait=0.05)
    till.gate.clear()
    first = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k"))
    await till.began.wait()
    with pytest.raises(InFlightError):
        await processor.process(Pay(5), idempotency_key="k", wait=float("inf"))
    till.gate.set()
    await first


async def test_settings_that_are_about_callers_count_here_too(make: Make) -> None:
    processor = make(Till(), raise_on_duplicate=True, require_scope=True)
    with pytest.raises(CallerMissing):
        await processor.process(Pay(5), idempotency_key="k")
    await processor.process(Pay(5), idempotency_key="k", caller="a\udc80")
    with pytest.raises(DuplicateCommandError):
        await processor.process(Pay(5), idempotency_key="k", caller="a\udc80")


async def test_half_a_character_is_no_key(make: Make) -> None:
    with pytest.raises(KeyInvalid):
        await make(Till()).process(Pay(5), idempotency_key="a\udc80")


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


async def test_masked_result_is_recorded_without_its_body(make: Make) -> None:
    class Token(BaseModel):
        value: SecretStr

    async def issue(command: Any) -> Token:
        return Token(value=SecretStr("s3cret"))

    processor = make(issue, result_type=Token)
    assert (await processor.process(Pay(5), idempotency_key="k")).value.get_secret_value() == "s3cret"
    with pytest.raises(DuplicateCommandError) as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.omitted


async def test_result_over_the_cap_is_recorded_without_its_body(make: Make) -> None:
    processor = make(Till(), max_response_body=5)
    await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(DuplicateCommandError) as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.omitted


async def test_failure_whose_caller_has_left_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    processor = make(till := Till())
    till.gate.clear()
    till.instead = [ValueError("declined")]
    call = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k"))
    await till.began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    till.gate.set()
    assert await processor.drain(30) == 0
    assert "after its caller had left" in caplog.text


async def test_execution_that_runs_out_of_time_while_the_process_ends_is_unknown_at_once(make: Make) -> None:
    processor = make(till := Till(), attempt_timeout=0.2)
    till.gate.clear()
    call = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k"))
    await till.began.wait()
    assert await processor.drain(30) == 0
    with pytest.raises(OutcomeUnknownError):
        await call
