"""The way of a request: it passes untouched, or without enforcement, or observed, or is under enforcement: an `Exchange`.

Both drivers go by it, the gateway's fast path and `oncegate.middleware.http.asgi_driver`.
"""
# Compiled: docs/decisions/0012-compiled.md

import logging
from collections.abc import Awaitable, Iterable
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.observe import Observation
from oncegate.middleware.http.asgi import PATH_SAFE, Message, Receive, Scope, Send
from oncegate.middleware.http.asgi_driver import AsgiDriver
from oncegate.middleware.http.door import HttpDoor, Observing
from oncegate.middleware.http.exchange import Exchange
from oncegate.middleware.http.keyed_request import OBSERVER_FAILED
from oncegate.middleware.http.observed.shadow import Observed
from oncegate.middleware.outcome import responses
from oncegate.middleware.rules.headers.request_id import ids
from oncegate.middleware.rules.keys.key import LastCaller
from oncegate.middleware.rules.policy import Policy
from oncegate.middleware.rules.share import is_enforced

log = logging.getLogger("oncegate.http")

_BYPASS: Final = GateDecision.BYPASS.value  # an enum's takes a call


def way_of(
    door: HttpDoor,
    scope: Scope,
    path: str,
    raw_path: bytes | None,
    named: dict[bytes, bytes] | None = None,
    last: LastCaller | None = None,
) -> "Exchange | Observed | Bypass | None":
    """How a request goes on, by the path that its app routes by. ``named`` are its headers by name, where a server has them so,
    and ``last`` is who called last on its connection.

    - `Exchange`: under enforcement, and identified. Its driver goes on by what it has ``found``.
    - `Observed`: its key is not among those under enforcement, and what they would meet is observed.
    - `Bypass`: its method is under enforcement, but it has no key. It goes on with the headers that are there.
    - ``None``: it goes on untouched.
    """
    method = scope["method"]
    if method not in door.policies.methods:  # as `match` says; most requests are spared the rest
        return None
    policy = door.policies.match(method, path, raw_path)
    if policy is None:
        return None
    headers = scope["headers"]
    if policy.is_partial and not is_enforced(policy, headers):
        shadow = door.shadow
        return Observed(door, shadow, policy, scope) if shadow is not None and policy.settings.shadow else None
    if policy.needs_no_key and not (
        policy.is_decisive(headers)
        if named is None
        else policy.key_names[0] in named or not policy.decisive.isdisjoint(named)
    ):
        if door.traces is not None:
            door.traces.of(scope, policy).bypassed()
        return Bypass(door.observe, policy, scope, headers)
    exchange = Exchange(door, policy, scope)
    exchange.found = found = exchange.identify(named, last)
    if found is None:
        if exchange.trace is not None:
            exchange.trace.bypassed()
        return Bypass(door.observe, policy, scope, exchange.headers())
    return exchange


def enter(door: HttpDoor, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """The awaitable that answers an HTTP request in an app."""
    path, raw_path = scope["path"], scope.get("raw_path")
    root = scope.get("root_path")
    if root:
        path, raw_path = _below(root, path, raw_path)
    way = way_of(door, scope, path, raw_path)
    if isinstance(way, Exchange):
        return AsgiDriver(way, receive, send).serve()
    if way is None:
        return door.app(scope, receive, send)
    if not isinstance(way, Bypass):  # it is observed
        return way.serve(receive, send)
    if way.headers is not scope["headers"]:
        scope = {**scope, "headers": way.headers}
    return door.app(scope, receive, way.sending(send))


def _below(root: str, path: str, raw_path: bytes | None) -> tuple[str, bytes | None]:
    """The path that a mounted app routes by: the rest behind ASGI's root_path, if it begins with that, as in Starlette."""
    if path == root or path.startswith(root + "/"):
        path = path[len(root) :]
        sent = quote(root, safe=PATH_SAFE).encode()
        if raw_path is not None and raw_path.startswith(sent):
            raw_path = raw_path[len(sent) :]
    return path, raw_path


class Bypass:
    """A request that goes on without a key, with these ``headers``. Its response is passed to ``observe``, and marked
    (Cache-Status) as not enforced.
    """

    __slots__ = ("_began", "_observe", "_policy", "_send", "headers", "scope")

    def __init__(self, observe: Observing | None, policy: Policy, scope: Scope, headers: Any) -> None:
        self.headers = headers
        self._observe = observe
        self._policy = policy
        self.scope = scope
        self._began = 0.0 if observe is None else monotonic()

    def answered(self, status: int, lines: bytes, headers: Iterable[Any]) -> tuple[bytes, responses.Headers]:
        """The response's ``lines``, where it has such, and headers. To be called once, when it begins."""
        if self._observe is not None:
            method, seconds = self.scope["method"], monotonic() - self._began
            try:
                self._observe(Observation(_BYPASS, status, 0, "", self._policy.route, method, seconds), self)
            except Exception:  # a user's observer must not decide about a payment
                log.exception(OBSERVER_FAILED, extra=self.ids())
        return responses.bypassed(lines, headers)

    def ids(self) -> dict[str, str]:
        """The members of a log's line about the request."""
        return ids(self.scope, self._policy.unshown)

    def sending(self, send: Send) -> Send:
        """The response's ASGI ``send``, before the server's."""
        self._send = send
        return self._on_message

    def _on_message(self, message: Message) -> Awaitable[None]:
        """Of its own it awaits nothing."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": self.answered(message["status"], b"", message.get("headers", ()))[1]}
        return self._send(message)
