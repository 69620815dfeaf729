"""The door for Python callers: `CommandProcessor.process` runs a command once per idempotency key.

The same claim, gate and attempt as behind HTTP. What is fingerprinted is the command's JSON form with sorted members; what
is kept is the result's JSON form, or, of an exception, its type's name and its text.
"""

import asyncio
import dataclasses
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

import orjson
from pydantic import BaseModel, TypeAdapter

from oncegate.cache.base import Cache
from oncegate.cache.record import State, StoredResponse
from oncegate.middleware.attempt import Attempt, LeaseLost
from oncegate.middleware.enforce import Ask, Enforcer, Verdict
from oncegate.middleware.errors import KeyInvalid, KeyMissing, Overloaded
from oncegate.middleware.fingerprint import fingerprint
from oncegate.middleware.gate import Decision
from oncegate.middleware.key import MAX_KEY_CHARACTERS, record_id, record_key
from oncegate.middleware.policy import compile_policy
from oncegate.middleware.processor import NotProcessed, OutcomeUnknown
from oncegate.middleware.respond import now_ms
from oncegate.middleware.settings import IdempotencySettings

log = logging.getLogger("oncegate.command")

Command = TypeVar("Command")
Result = TypeVar("Result")

_DONE, _RAISED = 200, 500
_MAX_ADMISSIONS = 3


class ProcessError(Exception):
    """Why a command was not executed. ``record`` is the record's id; ``retryable``: may the same call be made again."""

    retryable = False

    def __init__(self, message: str, record: str) -> None:
        super().__init__(message)
        self.record = record


class DuplicateCommandError(ProcessError):
    """The key has succeeded already. ``original_result`` is its result; ``None``, and ``omitted``, where it was not kept."""

    def __init__(self, message: str, record: str, original_result: Any, *, omitted: bool) -> None:
        super().__init__(message, record)
        self.original_result = original_result
        self.omitted = omitted


class KeyReusedError(ProcessError):
    """The key was used for another command."""


class InFlightError(ProcessError):
    """The first call with this key is still executing."""

    retryable = True


class OutcomeUnknownError(ProcessError):
    """An earlier call with this key may or may not have been executed, and ``on_unknown`` is to refuse."""


class CommandFailedError(ProcessError):
    """What an earlier call raised, under ``on_error = "replay"`` or while this one waited: ``kind`` is its type's name."""

    def __init__(self, kind: str, message: str, record: str) -> None:
        super().__init__(message, record)
        self.kind = kind


class CommandProcessor(Generic[Command, Result]):
    """Executes commands by ``execute``, under the idempotency keys that the callers give.

    ``name`` tells this processor's commands from others' in the fingerprint and never changes. ``execute`` may be a coroutine
    function or a plain one (run in a thread). It may raise `NotProcessed` (the key is free at once) or `OutcomeUnknown`; any
    other exception is a failure. ``result_type`` says how results are stored and read back (anything that pydantic takes;
    what it can't take fails here, before any effect); without it, results are JSON values. A result that can't be stored
    after all is recorded as a success without its body.

    `drain` is to be awaited before the process ends.
    """

    def __init__(
        self,
        execute: Callable[[Command], Awaitable[Result] | Result],
        *,
        name: str,
        cache: Cache,
        settings: IdempotencySettings | None = None,
        namespace: str = "default",
        result_type: Any = Any,
        max_in_flight: int = 1000,
    ) -> None:
        if not namespace or ":" in namespace:
            raise ValueError("namespace must not be empty and must not hold a colon")
        self._execute = execute
        self._in_thread = not inspect.iscoroutinefunction(execute)
        self._name = name.encode()
        self._namespace = namespace
        self._policy = compile_policy(settings or IdempotencySettings())
        self._result: TypeAdapter[Any] = TypeAdapter(result_type)
        self._enforcer = Enforcer(cache, max_in_flight=max_in_flight)

    async def process(
        self,
        command: Command,
        *,
        idempotency_key: str | None = None,
        caller: str = "",
        raise_on_duplicate: bool = False,
        wait: float = 0.0,
    ) -> Result:
        """The result of ``command``: of executing it now, or of the call that succeeded under this key.

        Without a key nothing is enforced, whatever ``raise_on_duplicate`` says. ``caller`` scopes the key; ``wait`` is how
        many seconds to wait for a concurrent call (capped by ``max_wait``). The execution goes on if this call is cancelled.

        Raises a `ProcessError`, what ``execute`` raised, `KeyInvalid`, `KeyMissing` (``require_key``), `Overloaded`,
        `oncegate.cache.errors.CacheError`, and ``TypeError`` for a command that has no JSON form.
        """
        if idempotency_key is None:
            if self._policy.settings.require_key:
                raise KeyMissing("This command requires an idempotency key.")
            return await self._call(command)
        if not 1 <= len(idempotency_key) <= MAX_KEY_CHARACTERS:
            raise KeyInvalid(f"The key has {len(idempotency_key)} characters: give 1 to {MAX_KEY_CHARACTERS}.")
        key = record_key(self._namespace, idempotency_key, (b"caller", caller.encode()) if caller else None)
        body = orjson.dumps(command, default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        print_ = fingerprint("PROCESS", self._name, b"", body)
        ask = Ask(key, print_, self._policy, min(wait, self._policy.settings.max_wait), raise_on_duplicate)
        for _ in range(_MAX_ADMISSIONS):
            outcome = await self._enforcer.admit(ask)
            if isinstance(outcome, Verdict):
                return self._tell(outcome, record_id(key))
            run = _Run(outcome)
            task = self._enforcer.in_flight.run(outcome, self._run(run, command))
            await asyncio.shield(task)
            if not isinstance(run.raised, LeaseLost):
                return cast(Result, run.told())
        raise Overloaded("The command was overtaken again and again before it could begin: try again later.")

    async def drain(self, timeout: float = 30.0) -> int:
        """Wait for executions whose callers have left, and for outcomes not yet recorded; how many were left."""
        return await self._enforcer.in_flight.drain(timeout)

    async def _call(self, command: Command) -> Result:
        if self._in_thread:
            return cast(Result, await asyncio.to_thread(self._execute, command))
        return await cast(Awaitable[Result], self._execute(command))

    async def _run(self, run: "_Run", command: Command) -> None:
        attempt = run.attempt
        try:
            await attempt.confirm()
            run.result = await self._call(command)
        except NotProcessed as error:
            run.raised = error
            await attempt.settle(None)
        except OutcomeUnknown as error:
            run.raised = error
            await attempt.settle(State.UNKNOWN, note=str(error))
        except asyncio.CancelledError:
            if self._enforcer.in_flight.closing and not attempt.overdue:
                raise
            run.raised = OutcomeUnknownError("The execution ran out of time.", attempt.record)
            await attempt.settle(State.UNKNOWN, note="ran into attempt_timeout")
        except Exception as error:  # noqa: BLE001  # whatever is raised is the failure: kept, and raised to the caller
            run.raised = error
            if attempt.overdue:  # it made an error of its cancellation
                await attempt.settle(State.UNKNOWN)
                return
            kept = orjson.dumps({"kind": type(error).__qualname__, "message": str(error)})
            await attempt.settle(State.FAILED, StoredResponse(_RAISED, (), kept, now_ms()))
        else:
            await attempt.settle(State.SUCCEEDED, StoredResponse(_DONE, (), self._kept(run), now_ms()))

    def _kept(self, run: "_Run") -> bytes | None:
        try:
            kept = self._result.dump_json(run.result)
        except Exception as error:  # noqa: BLE001  # whatever a value's own serializer raises: the effect has happened all the same
            log.warning("record %s: the result can't be stored: %s", run.attempt.record, type(error).__name__)
            return None
        if len(kept) > self._policy.settings.max_response_body:
            log.warning("record %s: the result is too large to be stored", run.attempt.record)
            return None
        return kept

    def _tell(self, verdict: Verdict, record: str) -> Result:
        decision, response = verdict.decision, verdict.record.response
        if decision is Decision.IN_FLIGHT:
            raise InFlightError("The first call with this key is still executing.", record)
        if decision is Decision.MISMATCH:
            raise KeyReusedError("This key was used for another command.", record)
        if decision is Decision.REFUSE:
            raise OutcomeUnknownError("An earlier call with this key may or may not have been executed.", record)
        body = response.body if response else None
        if verdict.record.state is State.FAILED:
            failure = orjson.loads(body or b'{"kind":"Exception","message":"the error was not kept"}')
            raise CommandFailedError(failure["kind"], failure["message"], record)
        result = None if body is None else self._result.validate_json(body)
        if decision is Decision.DUPLICATE:
            message = "A command with this key was already processed."
            raise DuplicateCommandError(message, record, result, omitted=body is None)
        return cast(Result, result)


class _Run:
    """What came of one execution."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.result: Any = None
        self.raised: Exception | None = None

    def told(self) -> Any:
        """The result; raises what was raised."""
        if self.raised is not None:
            raise self.raised
        return self.result


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a command holds a {type(value).__name__}, which has no JSON form")


class SyncCommandProcessor(Generic[Command, Result]):
    """A `CommandProcessor` for callers without an event loop: one loop in a thread of its own serves all of them.

    Closed by `close`, or at the end of a ``with`` block.
    """

    def __init__(self, processor: CommandProcessor[Command, Result]) -> None:
        self._processor = processor
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oncegate", daemon=True)
        self._thread.start()

    def process(self, command: Command, **options: Any) -> Result:
        """See `CommandProcessor.process`; called from any thread. An interrupted call leaves the execution to go on."""
        return asyncio.run_coroutine_threadsafe(self._processor.process(command, **options), self._loop).result()

    def close(self, timeout: float = 30.0) -> None:
        """Wait for executions at most ``timeout`` seconds, then end the loop. Idempotent."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._processor.drain(timeout), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "SyncCommandProcessor[Command, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
