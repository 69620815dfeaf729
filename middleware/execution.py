"""The execution of one attempt over HTTP: the app is called once, and what came of it settles the record."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from oncegate.cache.record import State
from oncegate.middleware import respond
from oncegate.middleware.asgi import App, Message
from oncegate.middleware.attempt import Attempt, LeaseLost, Unconfirmed
from oncegate.middleware.capture import Capture
from oncegate.middleware.processor import NotAccepted, NotProcessed, OutcomeUnknown

if TYPE_CHECKING:
    from oncegate.middleware.http import IdempotencyMiddleware

log = logging.getLogger("oncegate.http")


class Execution:
    """Runs the app for ``attempt``: its response goes into ``capture``, and how it ended decides about the record.

    Where there is no response: ``slug`` and ``detail`` are the problem to answer with, or ``raised`` is what the app raised
    (`LeaseLost`: nothing was begun).
    """

    def __init__(self, middleware: "IdempotencyMiddleware", attempt: Attempt) -> None:
        self.capture = Capture(attempt.policy.settings.max_response_body, self._whole)
        self.slug: str | None = None
        self.detail = ""
        self.raised: Exception | None = None
        self._middleware = middleware
        self._attempt = attempt
        self._refused: NotProcessed | None = None
        self._body: bytes | None = None

    async def confirm(self) -> None:
        """See `Attempt.confirm`. What the app answers after a refusal, or makes of it, is no result of the attempt."""
        if self._attempt.is_certain:
            return
        try:
            await self._attempt.confirm()
        except NotProcessed as error:
            self._refused = error
            self.capture.deaf = True
            raise

    def _whole(self, capture: Capture) -> None:
        # The app goes on meanwhile: nothing of it is held up, or held in memory, until the cache has answered.
        policy = self._attempt.policy
        state = policy.state(capture.status)
        stored = None if state is None else respond.stored(capture.status, capture.headers, capture.body, policy)
        self._attempt.settle_soon(state, stored, capture.end)

    async def execute(self, scope: dict[str, Any], body: bytes) -> None:
        """Call the app, and settle the attempt by what came of it. Raises nothing but a cancellation at shutdown."""
        self._body = body
        await self._settle_by(self._confirmed(scope))

    async def resume(self, app: App) -> None:
        """The same for an attempt whose request was sent already: ``app`` gets the rest of it, and no scope."""
        await self._settle_by(self._call(app, {}))

    async def _confirmed(self, scope: dict[str, Any]) -> None:
        await self._attempt.confirm()
        await self._call(self._middleware.submit if self._attempt.submission else self._middleware.app, scope)

    async def _settle_by(self, call: Awaitable[None]) -> None:
        attempt = self._attempt
        try:
            await call
        except LeaseLost as error:
            # A response that has begun can't be begun anew.
            self.raised = error if not self.capture.status else RuntimeError("confirmed after its response had begun")
            await attempt.settle(None)
        except Unconfirmed:
            self._answer("cache-unavailable", "The record cache can't be reached. Nothing was executed.")
            await attempt.settle(None)
        except NotAccepted as error:
            log.warning("record %s: not accepted: %s", attempt.record, error)
            self._answer(error.slug, str(error))
            # Submitting again is harmless, and takes over what is unknown. To execute it beside its copy would not be, which
            # a request can only ask for where the mode is "either".
            unknown = error.copied and attempt.policy.mode == "either"
            await attempt.settle(State.UNKNOWN if unknown else None, note="the command stream did not answer")
        except NotProcessed as error:
            log.warning("record %s: nothing was sent: %s", attempt.record, error)
            self._answer(
                "upstream-unreachable", "No connection to the upstream. Nothing was executed; the key is free."
            )
            await attempt.settle(None)
        except OutcomeUnknown as error:
            log.warning("record %s: the outcome is unknown: %s", attempt.record, error)
            self._answer("upstream-failed", "The connection broke after the request was sent: its outcome is unknown.")
            await attempt.settle(State.UNKNOWN, note=str(error))
        except asyncio.CancelledError:
            if self._middleware.enforcer.in_flight.closing and not attempt.overdue:
                raise  # shutdown: the lease lapses, and the record reads unknown
            self._answer("upstream-failed", "The attempt ran out of time: its outcome is unknown.")
            await attempt.settle(State.UNKNOWN, note="ran into attempt_timeout")
        except Exception as error:  # whatever an app raises is its failure, kept and raised again
            self.raised = error
            if self.capture.client_gone:  # nobody is left whom the server would tell
                log.error("record %s: the app raised after its client had left", attempt.record, exc_info=error)
            await attempt.settle(State.FAILED, respond.stored_exception(), note=f"raised {type(error).__qualname__}")
        finally:
            self.capture.cut()

    async def _call(self, app: App, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self.capture.send)
            if not self.capture.whole:
                raise RuntimeError("the app returned without a complete response")
        except Exception as error:
            if self._refused is not None and error is not self._refused:
                raise self._refused from error
            told = isinstance(error, NotProcessed | OutcomeUnknown)
            if self._attempt.overdue and not told and not self.capture.whole:
                raise OutcomeUnknown("it made an error of its cancellation by attempt_timeout") from error
            raise

    async def _receive(self) -> Message:
        """ASGI ``receive``: the body at once, then nothing, since no client can leave an attempt."""
        body, self._body = self._body, None
        if body is None:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": body, "more_body": False}

    def _answer(self, slug: str, detail: str) -> None:
        self.slug, self.detail = slug, detail
