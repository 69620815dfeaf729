"""``keep_body = false``: what happened is kept, and nothing that was said. Rule of docs/contract.md: R7.14."""

import pytest

from oncegate import CommandFailedError, CommandProcessor, DuplicateCommandError, IdempotencySettings
from oncegate.cache.memory.store import MemoryCache
from oncegate.cache.record import State
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import Route
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering


@pytest.mark.parametrize(("status", "state"), [(201, State.SUCCEEDED), (422, State.FAILED)])
async def test_a_retry_gets_that_it_was_executed_and_not_what_was_answered(
    door: MakeDoor, status: int, state: State
) -> None:
    app = Answering(status, headers=[(b"location", b"/accounts/secret")])
    one = door(app, routes=[Route(path="/payments", keep_body=False)], on_error="replay")
    first, retry = await one.send(), await one.send()
    assert (first.status, first.body, first.value("location")) == (status, b"answer 1", "/accounts/secret")
    assert (app.calls, retry.code) == (1, "duplicate")
    original = retry.problem["original_result"]
    assert (original["status"], original["headers"], original["body_omitted"]) == (status, [], True)
    record = await one.record()
    assert record.state is state
    assert record.response is not None
    assert record.response[:3] == (status, (), None)
    other = await one.send(path="/others", key="k-2")
    assert (other.body, (await one.send(path="/others", key="k-2")).body) == (b"answer 2", b"answer 2")


async def test_a_processor_keeps_no_result_and_no_error_either() -> None:
    def fail(command: int) -> int:
        if command:
            raise ValueError("secret")
        return 7

    rules = IdempotencySettings(keep_body=False, on_error="replay")
    processor = CommandProcessor[int, int](fail, name="p", cache=MemoryCache(), settings=rules)
    assert await processor.process(0, idempotency_key="a") == 7
    with pytest.raises(DuplicateCommandError) as duplicate:
        await processor.process(0, idempotency_key="a")
    assert (duplicate.value.omitted, duplicate.value.original_result) == (True, None)
    with pytest.raises(ValueError, match="secret"):
        await processor.process(1, idempotency_key="b")
    with pytest.raises(CommandFailedError) as failed:
        await processor.process(1, idempotency_key="b")
    assert "secret" not in str(failed.value)


def test_what_answers_a_submission_is_the_gateways_and_kept() -> None:
    policy = compile_policy(
        IdempotencySettings(keep_body=False), Route(path="/a", mode="async", on_missing_key="reject")
    )
    assert policy.submission is not None
    assert policy.submission.keeps_body
    assert not policy.keeps_body
