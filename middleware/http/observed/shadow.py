"""Observes requests that are not under enforcement: each goes to the app untouched, and a copy of it through what enforces.

Strategy. The app gets the request, and the client the response, as if nothing were around the app. Beside them, in a task, the
driver that enforces drives an exchange of the same request: its body is read as it passes, its record is claimed, and where the
claim is won the command that it executes is the copy of the app's response (`ResponseCopy`), so that the record is completed
with that. What the driver would send to the client is dropped. So the code that enforces says what it would do, and no other.

The client waits for the cache in one place: its last byte waits until the record is complete, for the cache's time-out at most,
so that whoever retries after it meets what a retry meets under enforcement. And once the claim is won, a client that leaves
doesn't end its command, as under enforcement: else its outcome would be unknown.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any, Final

from oncegate.cache.store import timeout_of
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.observe import SHADOW, Observation
from oncegate.middleware.http.asgi import OBSERVED, Message, Receive, Scope, Send, read_body
from oncegate.middleware.http.asgi_driver import AsgiDriver
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.exchange import Step
from oncegate.middleware.http.keyed_request import OBSERVER_FAILED
from oncegate.middleware.http.observed.copies import RequestCopy, ResponseCopy
from oncegate.middleware.http.observed.exchange import ObservedExchange
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.rules.policy import Policy
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.shadow")

_ZERO_COPY: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""ASGI extensions by which an app would send what can't be copied. Without them it sends the same bytes itself."""
_BYPASS: Final = GateDecision.BYPASS.value
_OF_A_RESULT: Final = (GateDecision.REPLAY.value, GateDecision.DUPLICATE.value)


class Observed:
    """A request that is observed: `serve` answers it by the app."""

    def __init__(self, door: HttpDoor, shadow: HttpDoor, policy: Policy, scope: Scope) -> None:
        self._door = door
        self._policy = policy
        self._scope = scope = _copyable(scope)
        self._request = RequestCopy(policy.max_request_body)
        self._response = response = ResponseCopy(policy.max_result, scope, policy.completes_late)
        self._is_free = asyncio.Event()
        """Nothing of the client's own request waits for what is observed any more."""
        self._exchange = ObservedExchange(shadow, policy, {**scope, OBSERVED: response}, self._is_free.set)
        self._began = monotonic()
        self._has_key = True
        self._receiving = 0
        self._is_gone = False

    async def serve(self, receive: Receive, send: Send) -> None:
        """ASGI. Raises what the app raises."""
        self._receive, self._send = receive, send
        self._door.admissions.in_flight.shared.in_background(self._observe())
        self._scope[OBSERVED] = True
        raised: Exception | None = None
        try:
            await self._door.app(self._scope, self._app_receive, self._app_send)
        except Exception as error:  # noqa: BLE001 - raised below
            raised = error
        except BaseException as end:
            self._response.end(end)
            raise
        self._response.end(raised)
        if not self._response.is_whole:
            await self._wait(for_record=True)
        self._request.end()
        if raised is not None:
            try:
                raise raised
            finally:
                raised = None  # its traceback holds this frame

    # -- the client's own request -------------------------------------------------------------------------------------

    async def _app_receive(self) -> Message:
        """ASGI ``receive`` for the app."""
        self._receiving += 1
        try:
            message = await self._receive()
        finally:
            self._receiving -= 1
        if message["type"] == "http.disconnect" and self._request.is_over:
            await self._is_free.wait()  # until its command has ended, where this is the first request
        self._request.add(message)
        return message

    async def _app_send(self, message: Message) -> None:
        """ASGI ``send`` for the app."""
        response = self._response
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ())]}
        was_whole = response.is_whole
        response.add(message)
        if response.is_whole and not was_whole:
            await self._wait(for_record=not response.is_late())
        if self._is_gone:
            return
        try:
            await self._send(message)
        except OSError:
            if self._is_free.is_set():
                raise
            self._is_gone = True  # its command goes on, if it is the first one

    async def _wait(self, *, for_record: bool) -> None:
        """Before the client has all that it gets: read what is left of its body, and wait until a retry meets the record.

        For the cache's time-out at most. An app that is recorded once it has returned can't wait for that.
        """
        if self._is_free.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_of(self._door.admissions.in_flight.shared.cache)):
                while self._request.is_wanted and not self._request.is_over and not self._receiving:
                    self._request.add(await self._receive())  # an app need not read a body that it doesn't want
                if for_record:
                    await self._is_free.wait()

    # -- what is observed beside it -----------------------------------------------------------------------------------

    async def _observe(self) -> None:
        """Drive the copy. Raises nothing: nobody awaits it."""
        exchange = self._exchange
        try:
            goes_on, step = await self._first_step()
            self._request.drop()
            if goes_on:
                await AsgiDriver(exchange, _receive_nothing, _send_nowhere).decide(b"", step)
        except Exception as error:  # noqa: BLE001 - the app's own, which its client has got
            log.debug("record %s: what was observed has raised %s", exchange.record, type(error).__qualname__)
        finally:
            self._request.drop()
            self._response.drop()
            self._is_free.set()
        await self._response.is_over.wait()
        try:
            self._report()
        except Exception:
            log.exception(OBSERVER_FAILED)

    async def _first_step(self) -> tuple[bool, Step]:
        """The driver's first step, and whether there is any: none without a key, or without the whole request."""
        exchange, door = self._exchange, self._door
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            door.buffered.take(size)
            held += size

        try:
            found = exchange.identify()
            if isinstance(found, Tokens):
                found = exchange.identify(waited=await found.refreshed())
            if isinstance(found, str):
                limit, timeout = self._policy.max_request_body, door.body_timeout
                body = await read_body(self._request.receive, exchange.fields, limit, timeout, hold)
                if body is None:
                    return False, None
                exchange.admit(found, body)
                return True, None
        except Exception as error:  # noqa: BLE001 - answered, or raised by the driver
            return True, exchange.refused(error)
        finally:
            if held:
                door.buffered.give_back(held)
        self._has_key = found is not None
        if found is None and exchange.trace is not None:
            exchange.trace.bypassed()
        return isinstance(found, Answer), found if isinstance(found, Answer) else None

    def _report(self) -> None:
        """Count what was observed, and log it in one line."""
        observation, response, result = self._exchange.observation, self._response, self._exchange.result
        if not self._has_key and response.status:
            seconds, route, method = response.began_at - self._began, self._policy.route, self._scope["method"]
            observation = Observation(_BYPASS, response.status, 0, "", route, method, seconds, mode=SHADOW)
        if observation is None:
            return
        more: dict[str, Any] = {}
        if result is not None and observation.decision in _OF_A_RESULT:
            more = {"first_status": result.status}
            if response.is_whole:
                more["differs"], more["headers"] = response.differences(result, self._policy.unstored)
        if observation.mismatch:
            more["mismatch"] = True
        log.info(
            "%s -> %d, observed",
            observation.decision,
            observation.status,
            extra={
                "mode": SHADOW,
                "decision": observation.decision,
                "status": observation.status,
                "upstream_status": response.status,
                "attempt": observation.attempt,
                "record": observation.record,
                "route": observation.route,
                "method": observation.method,
                "seconds": round(observation.seconds, 6),
                **self._exchange.ids(),
                **more,
            },
        )
        if self._door.observe is not None:
            self._door.observe(observation, self._exchange)


def shadow_of(door: HttpDoor) -> HttpDoor:
    """The door by which what is observed goes: its app answers with the copy of a response that there is."""
    traces = None if door.traces is None else door.traces.observed()
    return replace(door, app=_copied, submit=_copied, observe=None, traces=traces, count_refusal=None)


async def _copied(scope: Scope, receive: Receive, send: Send) -> None:
    response: ResponseCopy = scope[OBSERVED]
    await response.app(scope, receive, send)


def _copyable(scope: Scope) -> Scope:
    """``scope``, without what would let an app send what can't be copied."""
    extensions = scope.get("extensions")
    if not extensions or _ZERO_COPY.isdisjoint(extensions):
        return scope
    return {**scope, "extensions": {name: extensions[name] for name in extensions if name not in _ZERO_COPY}}


async def _receive_nothing() -> Message:
    return {"type": "http.disconnect"}


async def _send_nowhere(message: Message) -> None:
    pass
