"""What all requests to one app have in common, and the fork at which each of them takes its way."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Awaitable
from typing import Final
from urllib.parse import quote

from oncegate.middleware.admission.admission import Enforcer
from oncegate.middleware.admission.buffered import Buffered
from oncegate.middleware.admission.observe import Observe
from oncegate.middleware.admission.unread import Unread
from oncegate.middleware.http.asgi import App, Receive, Scope, Send
from oncegate.middleware.http.bypass import Bypass
from oncegate.middleware.http.caller import Caller
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.http.exchange import Exchange
from oncegate.middleware.http.redact import Redact
from oncegate.middleware.rules.policy import Policies

_PATH_SAFE: Final = "/!$&'()*+,;=:@~-._%"


class Enforcement:
    """Enforces ``policies`` on the requests for ``app`` and ``submit``, as
    `oncegate.middleware.http.middleware.IdempotencyMiddleware` says.

    Apart from it because it is compiled, which that can't be: servers look at an app's ``__call__``. A request looks up a dozen
    of these.
    """

    __slots__ = (
        "_routed",
        "app",
        "body_timeout",
        "buffered",
        "caller",
        "cors",
        "date_header",
        "enforcer",
        "namespace",
        "observe",
        "policies",
        "redact",
        "submit",
        "unread",
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
        unread: Unread,
        date_header: bool,
        cors: CrossOrigin | None,
        observe: Observe | None,
        caller: Caller | None,
        redact: Redact | None,
        warn_of_signed_callers: bool,
    ) -> None:
        self.app = app
        self.submit = submit
        self.policies = policies
        self._routed = len(policies.all()) > 1
        self.enforcer = enforcer
        self.namespace = namespace
        self.body_timeout = body_timeout
        self.buffered = buffered
        self.unread = unread
        self.cors = cors
        self.date_header = date_header
        self.observe = observe
        self.caller = caller
        self.redact = redact
        self.warn_of_signed_callers = warn_of_signed_callers

    def enter(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """What answers an HTTP request, to be awaited. What isn't enforced passes first, untouched."""
        if self._routed:  # else it matters to nobody what the path is
            path, raw_path = scope["path"], scope.get("raw_path")
            if root := scope.get("root_path"):
                path, raw_path = _below(root, path, raw_path)
            policy = self.policies.match(scope["method"], path, raw_path)
        else:
            policy = self.policies.match(scope["method"], "")
        if policy is not None:
            if not policy.passes(scope["headers"]):
                return Exchange(self, policy, scope, receive, send).serve()
            send = Bypass(self.observe, policy, scope, send).send
        return self.app(scope, receive, send)


def _below(root: str, path: str, raw_path: bytes | None) -> tuple[str, bytes | None]:
    """What an app routes by where it is mounted, or served under ``--root-path``: what comes behind that (ASGI's root_path).

    As Starlette has it: a server or a mount that doesn't put the root before the path has nothing to be taken off.
    """
    if path == root or path.startswith(root + "/"):
        path = path[len(root) :]
        sent = quote(root, safe=_PATH_SAFE).encode()
        if raw_path is not None and raw_path.startswith(sent):
            raw_path = raw_path[len(sent) :]
    return path, raw_path
