"""`CommandProcessor.process`: the Python door, held to the same promises as HTTP.

Rules of docs/contract.md: R2.22, R2.23, R12.4, R12.5.
"""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from oncegate import (
    CommandFailedError,
    CommandProcessor,
    DuplicateCommandError,
    InFlightError,
    KeyInvalid,
    KeyMissing,
    KeyReusedError,
    MemoryCache,
    NotProcessed,
    OutcomeUnknown,
    OutcomeUnknownError,
)
from tests.middleware.till import Make, Pay, Till, begun


class Receipt(BaseModel):
    number: int


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


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_reaches_the_caller_and_leaves_the_outcome_unknown(
    make: Make, kind: type[BaseException]
) -> None:
    processor = make(till := Till())
    till.instead = [kind()]
    with pytest.raises(kind):
        await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(OutcomeUnknownError):
        await processor.process(Pay(5), idempotency_key="k")


@pytest.mark.parametrize("error", [ValueError("declined"), GeneratorExit("declined"), ValueError("declined \udc80")])
async def test_failure_is_replayed_where_the_policy_says_so(make: Make, error: BaseException) -> None:
    processor = make(till := Till(), on_error="replay")
    till.instead = [error]
    with pytest.raises(type(error), match="declined"):
        await processor.process(Pay(5), idempotency_key="k")
    with pytest.raises(CommandFailedError, match="declined") as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.kind == type(error).__name__
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
    first = await begun(processor, till)
    with pytest.raises(InFlightError) as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.retryable
    waiting = asyncio.ensure_future(processor.process(Pay(5), idempotency_key="k", wait=30))
    till.gate.set()
    assert await first == await waiting == {"number": 1}


async def test_cancelled_call_does_not_end_its_execution(make: Make) -> None:
    processor = make(till := Till())
    call = await begun(processor, till)
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


class Token(BaseModel):
    value: SecretStr


@pytest.mark.parametrize(
    ("result", "options"),
    [
        (object(), {}),
        (Token(value=SecretStr("s3cret")), {"result_type": Token}),  # its JSON form is masked
        ({"number": 1}, {"max_result": 5}),
    ],
)
async def test_result_that_cannot_be_stored_is_recorded_without_its_body(
    make: Make, result: object, options: dict[str, Any]
) -> None:
    async def execute(command: Any) -> object:
        return result

    processor = make(execute, **options)
    assert await processor.process(Pay(5), idempotency_key="k") is result
    with pytest.raises(DuplicateCommandError) as raised:
        await processor.process(Pay(5), idempotency_key="k")
    assert raised.value.omitted


async def test_result_type_that_cannot_be_stored_fails_at_construction() -> None:
    with pytest.raises(Exception, match="schema"):
        CommandProcessor(Till(), name="pay", cache=MemoryCache(), result_type=Till)


@pytest.mark.parametrize("key", ["", "k" * 256, "half a character \udc80"])
async def test_what_is_no_key_is_refused(make: Make, key: str) -> None:
    processor = make(till := Till())
    with pytest.raises(KeyInvalid):
        await processor.process(Pay(5), idempotency_key=key)
    assert not till.executed


async def test_required_key_is_required(make: Make) -> None:
    with pytest.raises(KeyMissing):
        await make(Till(), on_missing_key="reject").process(Pay(5))


async def test_a_concurrent_call_waits_as_the_settings_say(make: Make) -> None:
    processor = make(till := Till(), wait=20)
    first = await begun(processor, till)
    with pytest.raises(InFlightError):
        await processor.process(Pay(5), idempotency_key="k", wait=0)
    second = asyncio.create_task(processor.process(Pay(5), idempotency_key="k"))
    done, _ = await asyncio.wait([second], timeout=0.2)
    assert not done
    till.gate.set()
    assert await first == await second
    assert len(till.executed) == 1


async def test_a_key_has_the_form_that_the_settings_want(make: Make) -> None:
    processor = make(till := Till(), key_pattern="uuid7")
    with pytest.raises(KeyInvalid, match="a UUID of version 7"):
        await processor.process(Pay(5), idempotency_key="order-1")
    assert not till.executed
    await processor.process(Pay(5), idempotency_key="01890a5d-ac96-774b-bcce-b302099a8057")
    assert len(till.executed) == 1
