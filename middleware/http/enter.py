"""Routes each request: what isn't enforced goes on to the app, untouched; the rest becomes an `Exchange`."""
# Compiled: docs/decisions/0012-compiled.md

import logging
from collections.abc import Awaitable, Iterable, Mapping
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.observe import Observation, Observe
from oncegate.middleware.http.asgi import PATH_SAFE, Message, Receive, Scope, Send
from oncegate.middleware.http.asgi_driver import AsgiDriver
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.exchange import Exchange
from oncegate.middleware.http.keyed_request import OBSERVER_FAILED
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.rules.policy import ATTEMPT_HEADER, Policy
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.http")

_BYPASS: Final = GateDecision.BYPASS.value  # an enum's takes a call


def enter(door: HttpDoor, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """The awaitable that answers an HTTP request. What isn't enforced passes first, untouched."""
    if door.policies.routes:  # else the path doesn't matter
        path, raw_path = scope["path"], scope.get("raw_path")
        if root := scope.get("root_path"):
            path, raw_path = _below(root, path, raw_path)
        policy = door.policies.match(scope["method"], path, raw_path)
    else:
        policy = door.policies.match(scope["method"], "")
    if policy is not None:
        if not policy.passes(scope["headers"]):
            exchange = Exchange(door, policy, scope)
            found = exchange.identify()
            if isinstance(found, str):
                return AsgiDriver(exchange, receive, send).serve(found)
            if isinstance(found, Tokens):
                return _identified_later(exchange, found, receive, send)
            if found is not None:
                return AsgiDriver(exchange, receive, send).decide(b"", found)
            if ATTEMPT_HEADER in exchange.fields:
                scope = {**scope, "headers": exchange.headers()}
        send = Bypass(door.observe, policy, scope, send).send
    return door.app(scope, receive, send)


async def _identified_later(exchange: Exchange, tokens: Tokens, receive: Receive, send: Send) -> None:
    """Answer a request whose caller is known, or is not, once the keys that it takes have been looked for."""
    found = exchange.identify(waited=await tokens.refreshed())
    driver = AsgiDriver(exchange, receive, send)
    if isinstance(found, str):
        await driver.serve(found)
    elif isinstance(found, Answer):
        await driver.decide(b"", found)


def _below(root: str, path: str, raw_path: bytes | None) -> tuple[str, bytes | None]:
    """The path that a mounted app routes by: the rest behind ASGI's root_path, if it begins with that, as in Starlette."""
    if path == root or path.startswith(root + "/"):
        path = path[len(root) :]
        sent = quote(root, safe=PATH_SAFE).encode()
        if raw_path is not None and raw_path.startswith(sent):
            raw_path = raw_path[len(sent) :]
    return path, raw_path


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
            try:
                self._observe(Observation(_BYPASS, status, 0, "", self._policy.route, self._method, seconds))
            except Exception:  # a user's observer must not decide about a payment
                log.exception(OBSERVER_FAILED)
        return responses.bypassed_headers(headers)

    def send(self, message: Message) -> Awaitable[None]:
        """ASGI ``send``, for the response. Of its own it awaits nothing."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": self.headers(message["status"], message.get("headers", ()))}
        return self._send(message)
