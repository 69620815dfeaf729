"""What all requests to one app have in common, and the fork at which each of them takes its way."""

from collections.abc import Awaitable

from oncegate.middleware.asgi import App, Receive, Scope, Send
from oncegate.middleware.buffered import Buffered
from oncegate.middleware.bypass import Bypass
from oncegate.middleware.enforce import Enforcer
from oncegate.middleware.exchange import Exchange
from oncegate.middleware.observe import Observe
from oncegate.middleware.policy import Policies


class Enforcement:
    """Enforces ``policies`` on the requests for ``app`` and ``submit``, as `oncegate.middleware.http.IdempotencyMiddleware` says.

    Apart from it because it is compiled, which that can't be: servers look at an app's ``__call__``. A request looks up a dozen
    of these.
    """

    __slots__ = (
        "app",
        "body_timeout",
        "buffered",
        "date_header",
        "enforcer",
        "namespace",
        "observe",
        "policies",
        "submit",
        "warn_of_signed_callers",
    )

    def __init__(
        self,
        app: App,
        submit: App,
        policies: Policies,
        enforcer: Enforcer,
        *,
        namespace: str,
        body_timeout: float,
        buffered: Buffered,
        date_header: bool,
        observe: Observe | None,
        warn_of_signed_callers: bool,
    ) -> None:
        self.app = app
        self.submit = submit
        self.policies = policies
        self.enforcer = enforcer
        self.namespace = namespace
        self.body_timeout = body_timeout
        self.buffered = buffered
        self.date_header = date_header
        self.observe = observe
        self.warn_of_signed_callers = warn_of_signed_callers

    def enter(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """What answers an HTTP request, to be awaited. What isn't enforced passes first, untouched."""
        policy = self.policies.match(scope["method"], scope["path"])
        if policy is not None:
            if not policy.passes(scope["headers"]):
                return Exchange(self, policy, scope, receive, send).serve()
            send = Bypass(self.observe, policy, scope, send).send
        return self.app(scope, receive, send)
