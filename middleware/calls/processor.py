"""`CommandProcessor`: executes a Python caller's command once per idempotency key, by the same claim, gate and attempt as HTTP.

The command's JSON form with sorted members is fingerprinted. Kept are the result's JSON form, or an exception's type and text.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Required, TypedDict, TypeVar, Unpack, cast, overload

from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.open import given_cache
from oncegate.cache.record import State, StoredResponse
from oncegate.cache.store import Cache
from oncegate.middleware.admission.admission import Admissions, Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.lease import LeaseLost, Unconfirmed
from oncegate.middleware.admission.request import Address, AdmissionRequest, Rotation
from oncegate.middleware.calls.errors import (
    CommandFailedError,
    DuplicateCommandError,
    InFlightError,
    KeyReusedError,
    OutcomeUnknownError,
)
from oncegate.middleware.outcome.calling import call
from oncegate.middleware.outcome.raised import is_left, outcome_of
from oncegate.middleware.outcome.responses import now_ms
from oncegate.middleware.outcome.results import (
    Codec,
    JsonCodec,
    bounded,
    command_form,
    dumped,
    error_form,
    read_error,
)
from oncegate.middleware.rules.checks.arguments import check_callable, given_namespace, given_settings, is_async
from oncegate.middleware.rules.errors import MOST_TURNS, CallerMissing, KeyMissing, overtaken
from oncegate.middleware.rules.keys.digests import Digests, Secrets, given_digests
from oncegate.middleware.rules.keys.key import caller_scope, check_key, fingerprint, forgiving, record_id, record_key
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings

log = logging.getLogger("oncegate.command")

Payload = TypeVar("Payload")
Result = TypeVar("Result")

_DONE, _RAISED = 200, 500


class ProcessorOptions(TypedDict, Generic[Result], total=False):
    """The keyword arguments of `CommandProcessor`, for its overloads."""

    name: Required[str]
    cache: Required[Cache | str]
    settings: IdempotencySettings | None
    namespace: str
    secret: Secrets
    result_type: Any
    codec: Codec[Result] | None
    max_in_flight: int


class CommandProcessor(Generic[Payload, Result]):
    """A function that is executed once per idempotency key: ``execute``, for the keys that its callers give.

    - ``execute``: a coroutine function of a command, or a plain one, which runs in a thread that ``attempt_timeout`` can't end.
      It may raise `NotProcessed` (the key is free at once) or `OutcomeUnknown`; any other exception is a failure.
    - ``name``: keeps this processor's commands apart from others'. It is part of the fingerprint: never change it.
    - ``cache``: a `Cache`, or the URL of one (see `open_cache`); the attribute ``cache`` is what was opened.
    - ``settings``: the rules; ``max_result`` bounds what is kept of a result.
    - ``namespace``: keeps services that share a cache apart; no colon in it.
    - ``secret``: keys the digests of keys, callers and commands; 32 bytes or more; a list of two while one replaces the other.
    - ``result_type``: the type that results are stored as and read back as, anything that pydantic takes; what it can't take
      fails here. Without it results are JSON values: a retry gets a dict where the first call got a dataclass.
    - ``codec``: stores results in a way of its own, in the place of ``result_type``.
    - ``max_in_flight``: how many commands are executed at once.

    A result that can't be stored, would not come back equal, or is too large is recorded as a success without it. Await `drain`
    before the process ends, and `oncegate.cache.store.Cache.close` after it.
    """

    @overload
    def __init__(
        self, execute: Callable[[Payload], Awaitable[Result]], **options: Unpack[ProcessorOptions[Result]]
    ) -> None: ...
    @overload
    def __init__(self, execute: Callable[[Payload], Result], **options: Unpack[ProcessorOptions[Result]]) -> None: ...
    def __init__(
        self,
        execute: Callable[[Payload], Any],
        *,
        name: str,
        cache: Cache | str,
        settings: IdempotencySettings | None = None,
        namespace: str = "default",
        secret: Secrets = None,
        result_type: Any = Any,
        codec: Codec[Result] | None = None,
        max_in_flight: int = 1000,
    ) -> None:
        check_callable("execute", execute, "a function of a command")
        if not name or not isinstance(name, str):
            raise ValueError("name must be a text that is not empty")
        if codec is not None and result_type is not Any:
            raise ValueError("result_type and codec exclude each other")
        self._execute = execute
        self._in_loop = is_async(execute)
        self._name = name.encode()
        self._namespace = given_namespace(namespace)
        self._digests = given_digests(secret)
        self._policy = compile_policy(given_settings(settings, IdempotencySettings))
        if self._policy.is_partial:
            raise ValueError(
                "enforce is for requests over HTTP: of a processor's calls all are enforced, leave it at 100"
            )
        self._codec: Codec[Any] = codec or JsonCodec(result_type)
        self.cache = given_cache(cache)
        self._admissions = Admissions(self.cache, max_in_flight=max_in_flight)

    async def process(
        self,
        command: Payload,
        *,
        idempotency_key: str | None = None,
        caller: str = "",
        raise_on_duplicate: bool = False,
        wait: float | None = None,
    ) -> Result:
        """The result of ``command``: of executing it now, or of the call that succeeded under this key.

        Without a key nothing is enforced, whatever ``raise_on_duplicate`` says. ``caller`` scopes the key; ``wait`` is how
        many seconds to wait for a concurrent call (capped by ``max_wait``; by default as the settings say). The execution goes
        on if this call is cancelled.

        Raises a `ProcessError`, what ``execute`` raised, `KeyInvalid`, `KeyMissing` (``on_missing_key``), `CallerMissing`
        (``require_scope``), `Overloaded`, `oncegate.cache.errors.CacheError`, and ``TypeError`` for a command that has no
        JSON form.
        """
        if idempotency_key is None:
            if self._policy.settings.on_missing_key == "reject":
                raise KeyMissing("This command requires an idempotency key.")
            return await self._call(command)
        request = self._request(command, idempotency_key, caller, wait)
        request.raise_on_duplicate = bool(raise_on_duplicate or self._policy.raise_on_duplicate)
        for _ in range(MOST_TURNS):
            outcome = await self._admissions.admit(request)
            if isinstance(outcome, Verdict):
                return self._answer(outcome, record_id(request.address.key))
            run = _Run(outcome)
            task = self._admissions.in_flight.run(outcome, self._run(run, command))
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                run.abandoned = True
                raise
            if run.raised is None:
                return cast(Result, run.result)
            if not isinstance(run.raised, LeaseLost):
                raise run.raised
        raise overtaken("command")

    def _request(self, command: Payload, key: str, caller: str, wait: float | None) -> AdmissionRequest:
        """The request for admission. Raises what `process` raises before the cache is called."""
        settings, key_form = self._policy.settings, self._policy.key_form
        if settings.require_scope and not caller:
            raise CallerMissing("This command needs to know its caller.")
        check_key(key)
        if key_form is not None:
            key_form.check(key)
        seconds = settings.wait if wait is None else wait
        scope, form = self._scope(caller), self._form(command)
        address = self._address(key, scope, form, self._digests)
        request = AdmissionRequest(
            address,
            self._policy,
            min(seconds, settings.max_wait) if seconds > 0 else 0.0,  # NaN is not above 0, and would never be over
        )
        if self._digests.former is not None:
            request.rotation = Rotation(address, self._address(key, scope, form, self._digests.former))
        return request

    async def drain(self, timeout: float = 30.0) -> int:
        """Wait for executions whose callers have left, and for outcomes not yet recorded; how many were left."""
        return await self._admissions.in_flight.drain(timeout)

    def _address(self, key: str, scope: list[bytes] | None, form: bytes, digests: Digests) -> Address:
        whole = fingerprint("PROCESS", self._name, b"", form, digests=digests)
        marked = forgiving("PROCESS", self._name, whole, digests) if self._policy.warns else whole
        return Address(record_key(self._namespace, key, scope, digests), marked, whole)

    def _scope(self, caller: str) -> list[bytes] | None:
        """The key's scope: calls of different scopes never meet."""
        return caller_scope(caller)

    def _form(self, command: Payload) -> bytes:
        """The form of ``command`` that is fingerprinted. Raises ``TypeError`` where it has no JSON form."""
        return command_form(command)

    async def _call(self, command: Payload) -> Result:
        return cast(Result, await call(self._execute, command, in_loop=self._in_loop))

    async def _run(self, run: "_Run", command: Payload) -> None:
        attempt = run.attempt
        try:
            await attempt.lease.confirm()
            run.result = await self._call(command)
        except BaseException as error:  # whatever a command raises is its outcome
            if is_left(
                error, attempt.lease.task, closing=self._admissions.in_flight.closing and not attempt.lease.overdue
            ):
                raise
            self._settle_raised(run, error)
        else:
            kept = dumped(self._codec.dump, run.result, attempt.record)
            kept = bounded(self._policy.max_result, kept, attempt.record) if self._policy.keeps_body else None
            attempt.settle(State.SUCCEEDED, StoredResponse(_DONE, (), kept, now_ms()))
        await attempt.ended()

    @staticmethod
    def _settle_raised(run: "_Run", error: BaseException) -> None:
        """Record what was raised, and keep it for the caller: out of this task, some of it would end the event loop."""
        attempt = run.attempt
        state, note = outcome_of(error, overdue=attempt.lease.overdue)
        run.raised = error
        if isinstance(error, Unconfirmed):
            run.raised = CacheUnavailable(str(error))
        elif isinstance(error, asyncio.CancelledError):
            run.raised = OutcomeUnknownError(f"The execution {note}.", attempt.record)
        response = None
        if state is State.FAILED:
            kept = error_form(error) if attempt.policy.keeps_body else None
            response = StoredResponse(_RAISED, (), kept, now_ms())
            if run.abandoned:  # no caller is left to get it
                log.error("record %s: the command failed after its caller had left", attempt.record, exc_info=error)
        attempt.settle(state, response, note=note)

    def _answer(self, verdict: Verdict, record: str) -> Result:
        decision, response = verdict.decision, verdict.record.response
        if verdict.mismatch:
            log.warning("record %s: another command under a used key; answered by on_mismatch = warn", record)
        if decision is GateDecision.IN_FLIGHT:
            raise InFlightError("The first call with this key is still executing.", record)
        if decision is GateDecision.MISMATCH:
            raise KeyReusedError("This key was used for another command.", record)
        if decision is GateDecision.REFUSE:
            raise OutcomeUnknownError("An earlier call with this key may or may not have been executed.", record)
        body = response.body if response else None
        if verdict.record.state is State.FAILED:
            error = {"type": "Exception", "message": "the error was not kept"} | read_error(response)
            raise CommandFailedError(error["type"], error["message"], record)
        result = None if body is None else self._read(body, record)
        if decision is GateDecision.DUPLICATE:
            message = "A command with this key was already processed."
            raise DuplicateCommandError(message, record, result, omitted=body is None)
        return cast(Result, result)

    def _read(self, body: bytes, record: str) -> Any:
        try:
            return self._codec.load(body)
        except Exception as error:  # a user's codec may raise anything
            log.error("record %s: the stored result can't be read: %s", record, type(error).__name__)
            raise RecordUnreadable(
                "the stored result can't be read by this processor's result_type or codec"
            ) from error


@dataclass
class _Run:
    """The result or error of one execution. ``abandoned``: its caller was cancelled meanwhile."""

    attempt: Attempt
    abandoned: bool = False
    result: Any = None
    raised: BaseException | None = None
