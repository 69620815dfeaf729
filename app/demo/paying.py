"""The page's client: presses of its buttons, one at a time, as requests and the answers that they get."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

import orjson

from oncegate.app.demo.actions import FAULTS, Button, PaymentRequest, request_of
from oncegate.app.demo.exchange import Answer, NoAnswer, exchange
from oncegate.app.demo.faults import Faults
from oncegate.app.demo.readings import Readings

MOST_KEPT = 12
MOST_RETRIES = 30
SHOWN_HEADERS = ("idempotent-replayed", "cache-status", "retry-after")
_AS_CURL = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "*/*"}


@dataclass(slots=True)
class Sent:
    """A request that was sent, and its ``answer``; ``lost`` says why there is none. Neither: it is under way."""

    request: PaymentRequest
    answer: Answer | None = None
    lost: str = ""

    @property
    def problem(self) -> dict[str, Any]:
        """The answer's members if it is a problem, else none."""
        if self.answer is None or self.answer.headers.get("content-type") != "application/problem+json":
            return {}
        try:
            found = orjson.loads(self.answer.body)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}


class Paying:
    """The page's client.

    ``sent`` has the last `MOST_KEPT`, the newest first; ``busy`` is the action that runs, ``outcome`` the last one's end.
    """

    def __init__(self, readings: Readings, faults: Faults) -> None:
        self.sent: deque[Sent] = deque(maxlen=MOST_KEPT)
        self.busy: Button | None = None
        self.outcome = ""
        self._performed = 0
        self._readings = readings
        self._faults = faults

    async def perform(self, action: Button) -> bool:
        """Do it all, up to the answer with which its client ends. ``False``: another one runs."""
        if self.busy is not None:
            return False
        self.busy = action
        try:
            await self._perform(action)
        finally:
            self.busy = None
            self._readings.changed()
        return True

    async def _perform(self, action: Button) -> None:
        await self._readings.read()  # what curl has sent meanwhile is the last request, too
        request = request_of(action, self._readings.last, self._readings.fresh_key)
        self._readings.follow(request)
        if action.fault:
            await self._faults.arm(action.fault)
        first, *others = [self._begin(request) for _ in range(action.copies)]
        done = [await self._end(first)] if not others else await asyncio.gather(*map(self._end, (first, *others)))
        if action.fault:
            await self._faults.over()
            done = [await self._retry(request)]
        await self._readings.read()
        self._performed += 1  # numbered, so that the same outcome once more is read out, too
        answers = sorted(map(summary, done))  # what is executed first, whichever of two copies that was
        self.outcome = f"{self._performed}. {action.label}: {' and '.join(answers)}."

    async def _retry(self, request: PaymentRequest) -> Sent:
        """Send it again as a client does: as long as the answer says that this may help, after the pause that it asks for."""
        for _ in range(MOST_RETRIES):
            sent = await self._end(self._begin(request))
            if not sent.problem.get("retryable") or sent.answer is None:
                break
            await asyncio.sleep(float(sent.answer.headers.get("retry-after", 1)))
        return sent

    def _begin(self, request: PaymentRequest) -> Sent:
        sent = Sent(request)
        self.sent.appendleft(sent)
        self._readings.changed()
        return sent

    async def _end(self, sent: Sent) -> Sent:
        request = sent.request
        url = f"{self._readings.stack.gateway.address}{request.path}"
        headers = {**_AS_CURL, "Idempotency-Key": request.key}
        try:
            sent.answer = await asyncio.to_thread(exchange, "POST", url, headers, request.body.encode())
        except NoAnswer as error:
            sent.lost = str(error)
        self._readings.note("client", summary(sent))
        return sent


def summary(sent: Sent) -> str:
    """How it ended, in a few words."""
    if sent.answer is None:
        return sent.lost or "under way"
    what = sent.problem.get("code") or ("replayed" if "idempotent-replayed" in sent.answer.headers else "executed")
    return f"{sent.answer.status} {what}"


def is_possible(action: Button, faults: Faults) -> bool:
    """Whether what it needs runs."""
    return not action.fault or FAULTS[action.fault].process in faults.processes
