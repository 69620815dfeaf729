"""Bypass: marks and observes the response to a request without a key, of a method under enforcement."""
# Compiled: docs/decisions/0012-compiled.md

import logging
from collections.abc import Awaitable, Iterable, Mapping
from time import monotonic
from typing import Any, Final

from oncegate.middleware.admission.gate import Decision
from oncegate.middleware.admission.observe import Observation, Observe
from oncegate.middleware.http.asgi import Message, Send
from oncegate.middleware.outcome import responses
from oncegate.middleware.rules.policy import Policy

log = logging.getLogger("oncegate.http")

_BYPASS: Final = Decision.BYPASS.value  # an enum's takes a call


class Bypass:
    """The response to such a request: passed to ``observe``, and marked (Cache-Status) as not enforced."""

    __slots__ = ("_began", "_method", "_observe", "_policy", "_send")

    def __init__(self, observe: Observe | None, policy: Policy, scope: Mapping[str, Any], send: Send) -> None:
        self._observe = observe
        self._policy = policy
        self._method: str = scope["method"]
        self._send = send
        self._began = 0.0 if observe is None else monotonic()

    def headers(self, status: int, headers: Iterable[Any]) -> responses.Headers:
        """The response's headers. To be called once, when it begins."""
        if self._observe is not None:
            seconds = monotonic() - self._began
            tell(self._observe, Observation(_BYPASS, status, 0, "", self._policy.route, self._method, seconds))
        return responses.bypassed_headers(headers)

    def send(self, message: Message) -> Awaitable[None]:
        """ASGI ``send``, for the response. Of its own it awaits nothing."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": self.headers(message["status"], message.get("headers", ()))}
        return self._send(message)


def tell(observe: Observe, observation: Observation) -> None:
    """Call ``observe`` with an answer. Its errors are only logged."""
    try:
        observe(observation)
    except Exception:  # a user's observer must not decide about a payment
        log.exception("the observer failed")
