"""Fast path: answers a small, complete request by callbacks, without a task; whatever lasts is handed to the exchange.

Most requests are like that, and most of their cost in an ASGI app is waiting: a task, futures, messages, and a chain of
coroutines to resume at each step. Here each step is a callback of what it waited for: the client's bytes, the cache's
answer, the upstream's. The decisions are made by the same code.

Whatever lasts, or is unusual, leaves the fast path for a task that continues from the step reached: what is larger than one
read or write, an upstream without an idle connection, a response in pieces, an error, a wait for another request, a
submission that is to be accepted; and everything that is still under way a second later.
"""
# Compiled: docs/decisions/0012-compiled.md

from oncegate.app.gateway.enforcing import Enforcing
from oncegate.app.gateway.passing import Answering, Passing
from oncegate.app.server.request import InboundRequest
from oncegate.app.upstream.forward import Forwarder
from oncegate.middleware.http.enforcement import Enforcement
from oncegate.middleware.http.enter import Bypass
from oncegate.middleware.http.keyed_request import KeyedRequest
from oncegate.middleware.outcome.responses import Headers
from oncegate.middleware.rules.errors import Refusal
from oncegate.middleware.rules.policy import Policy


class Direct:
    """Takes a request that can be answered without a task."""

    def __init__(self, enforcement: Enforcement, forwarder: Forwarder) -> None:
        self._enforcement = enforcement
        self._forwarder = forwarder

    def take(self, request: InboundRequest, answering: Answering) -> bool:
        """Whether the request, which is whole, is being answered. ``answering`` is for the case that it leaves the fast path."""
        scope = request.scope
        enforcement, headers = self._enforcement, scope["headers"]
        policy = enforcement.policies.match(scope["method"], scope["path"], scope["raw_path"])
        if policy is None:
            return Passing(self._forwarder, request, answering).begin(headers)
        if policy.passes(headers):
            return self._bypass(request, answering, policy, headers)
        enforced = KeyedRequest(enforcement, policy, scope)
        try:
            look_up_key = enforced.identify()
        except Refusal as refusal:
            request.answer(enforced.refused(refusal))
            return True
        if look_up_key is not None:
            return Enforcing(enforcement, self._forwarder, request, enforced).begin(look_up_key)
        return self._bypass(request, answering, policy, enforced.headers())

    def _bypass(self, request: InboundRequest, answering: Answering, policy: Policy, headers: Headers) -> bool:
        bypass = Bypass(self._enforcement.observe, policy, request.scope, request.send)
        return Passing(self._forwarder, request, answering, bypass).begin(headers)
