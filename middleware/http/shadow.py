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
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from time import monotonic
from typing import Any, Final

from oncegate.cache.record import StoredResponse
from oncegate.cache.store import timeout_of
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.observe import SHADOW, Observation
from oncegate.middleware.http.asgi import OBSERVED, Message, Receive, Scope, Send, read_body
from oncegate.middleware.http.asgi_driver import AsgiDriver
from oncegate.middleware.http.capture import declared_length
from oncegate.middleware.http.completion import ends_late
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.exchange import Step
from oncegate.middleware.http.keyed_request import OBSERVER_FAILED
from oncegate.middleware.http.observed_exchange import ObservedExchange
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.errors import OutcomeUnknown
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.rules.policy import CONTENT_LENGTH, Policy
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.shadow")

_ZERO_COPY: Final = frozenset({"http.response.pathsend", "http.response.zerocopysend"})
"""ASGI extensions by which an app would send what can't be copied. Without them it sends the same bytes itself."""
_BYPASS: Final = GateDecision.BYPASS.value
_OF_A_RESULT: Final = (GateDecision.REPLAY.value, GateDecision.DUPLICATE.value)
_MOST_NAMES: Final = 10
"""The most headers that a line of the log names."""


class RequestCopy:
    """The body of a request, once more, as the app receives it: of one above ``limit`` bytes only the beginning."""

    def __init__(self, limit: int) -> None:
        self.is_over = False
        """All of it was received, or its client has left before that."""
        self.is_wanted = True
        self._limit = limit
        self._size = 0
        self._messages: deque[Message] = deque()
        self._news = asyncio.Event()

    def add(self, message: Message) -> None:
        """The app has received ``message``, or will."""
        if self.is_over:
            return
        self.is_over = message["type"] == "http.disconnect" or not message.get("more_body", False)
        if self.is_wanted and self._size <= self._limit:
            self._size += len(message.get("body", b""))
            self._messages.append(message)
            self._news.set()

    def end(self) -> None:
        """Nobody receives any more of it."""
        self.add({"type": "http.disconnect"})

    def drop(self) -> None:
        """It is needed no more."""
        self.is_wanted = False
        self._messages.clear()

    async def receive(self) -> Message:
        """ASGI ``receive``, for who reads the copy."""
        while not self._messages:
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()


class ResponseCopy:
    """The app's response, once more, as it is sent: of one above ``cap`` bytes only the beginning. `app` answers with it.

    ``is_over``: the app has returned, or raised ``error``. ``is_first``: it is the response of the record's own attempt.
    """

    def __init__(self, cap: int, scope: Scope, is_late: bool | None) -> None:
        self.status = 0
        self.headers: responses.Headers = []
        self.size = 0
        self.is_whole = False
        self.is_first = False
        self.is_over = asyncio.Event()
        self.began_at = 0.0
        self._scope = scope
        """The app's, which it may have added to."""
        self._is_late = is_late
        self._cap = cap
        self._due = -1
        self._pieces: deque[bytes] = deque()
        self._is_wanted = True
        self._digest = blake2b(digest_size=16)
        self._error: Exception | None = None
        self._news = asyncio.Event()

    # -- as it is sent ------------------------------------------------------------------------------------------------

    def add(self, message: Message) -> None:
        """The app sends ``message``."""
        kind = message["type"]
        if kind == "http.response.start" and not self.status:
            self.began_at = monotonic()
            self.headers = [(bytes(name).lower(), bytes(value)) for name, value in message["headers"]]
            self.status = message["status"]
            self._due = declared_length(self.status, self.headers)
            self.is_whole = self._due == 0
        elif kind == "http.response.body" and self.status and not self.is_whole:
            piece = bytes(message.get("body", b""))
            if self.size <= self._cap:  # beyond it nothing is compared, or kept
                if self._is_wanted and piece:
                    self._pieces.append(piece)
                if not self.is_first:
                    self._digest.update(piece)
            self.size += len(piece)
            self._due -= len(piece)
            # With all of its declared length the client has its response, whatever the app still does.
            self.is_whole = self._due == 0 or not message.get("more_body", False)
        self._news.set()

    def end(self, error: BaseException | None) -> None:
        """The app has returned, or raised ``error``."""
        if error is not None and not isinstance(error, Exception):  # it is the request's end, not the copy's
            error = OutcomeUnknown("the request ended before its response")
        self._error = error
        self.is_over.set()
        self._news.set()

    def is_late(self) -> bool:
        """Whether it is recorded once the app has returned (`Policy.completes_late`)."""
        return ends_late(self._scope) if self._is_late is None else self._is_late

    def drop(self) -> None:
        """It is needed no more, but for what it can be compared by."""
        self._is_wanted = False
        self._pieces.clear()

    # -- as an app ----------------------------------------------------------------------------------------------------

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI app that answers as the other one does, raises what that raises, and returns when it matters that that has."""
        await receive()  # whoever calls holds the body until then
        self.is_first = True
        is_begun = False
        while True:
            if self.status and not is_begun:
                is_begun = True
                await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
            elif is_begun and self._pieces:
                await send({"type": "http.response.body", "body": self._pieces.popleft(), "more_body": True})
            elif is_begun and self.is_whole:
                break
            elif self.is_over.is_set():
                raise self._error or RuntimeError("the app returned without a complete response")
            else:
                self._news.clear()
                await self._news.wait()
        for name, value in self._scope.items():
            scope.setdefault(name, value)
        await send({"type": "http.response.body", "body": b""})
        if self.is_late():
            await self.is_over.wait()
            if self._error is not None:
                raise self._error

    # -- compared -----------------------------------------------------------------------------------------------------

    def differences(self, first: StoredResponse, unstored: frozenset[bytes]) -> tuple[list[str], list[str]]:
        """The parts in which ``first`` differs from it (``status``, ``headers``, ``body``), and the names of such headers."""
        parts = [] if first.status == self.status else ["status"]
        if first.body is None:  # nothing else was kept, or too little to compare
            return parts, []
        ours = _by_name(responses.stored(self.status, self.headers, None, unstored).headers)
        kept = _by_name(first.headers)
        names = sorted(name for name in ours.keys() | kept.keys() if ours.get(name) != kept.get(name))
        if names:
            parts.append("headers")
        if len(first.body) != self.size or blake2b(first.body, digest_size=16).digest() != self._digest.digest():
            parts.append("body")
        return parts, [name.decode("latin-1") for name in names[:_MOST_NAMES]]


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    """The values by their headers' names, but for the length, which is the body's."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name != CONTENT_LENGTH:
            found.setdefault(name, []).append(value)
    return found


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
                **more,
            },
        )
        if self._door.observe is not None:
            self._door.observe(observation)


def shadow_of(door: HttpDoor) -> HttpDoor:
    """The door by which what is observed goes: its app answers with the copy of a response that there is."""
    return replace(door, app=_copied, submit=_copied, observe=None)


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
