"""What all requests to one app share: its policies, limits and observers."""
# Compiled: docs/decisions/0012-compiled.md

from oncegate.middleware.admission.admission import Admissions
from oncegate.middleware.admission.buffers import Buffered, Unread
from oncegate.middleware.admission.observe import Observe
from oncegate.middleware.http.app_functions import Caller, Redact
from oncegate.middleware.http.asgi import App
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.rules.digests import Digests
from oncegate.middleware.rules.policy import Policies
from oncegate.middleware.tokens.verifier import Tokens


class HttpDoor:
    """Enforces ``policies`` on the requests for ``app`` and ``submit``, as
    `oncegate.middleware.http.middleware.IdempotencyMiddleware` says.

    A class of its own because it is compiled, which the middleware can't be: servers inspect an app's ``__call__``. A request
    reads a dozen of these attributes.
    """

    __slots__ = (
        "_routed",
        "admissions",
        "app",
        "body_timeout",
        "buffered",
        "caller",
        "cors",
        "date_header",
        "digests",
        "namespace",
        "observe",
        "policies",
        "redact",
        "submit",
        "tokens",
        "unread",
        "warn_of_signed_callers",
    )

    def __init__(
        self,
        app: App,
        submit: App,
        policies: Policies,
        admissions: Admissions,
        *,
        namespace: str,
        digests: Digests,
        body_timeout: float,
        buffered: Buffered,
        unread: Unread,
        date_header: bool,
        cors: CrossOrigin | None,
        observe: Observe | None,
        caller: Caller | None,
        tokens: Tokens | None,
        redact: Redact | None,
        warn_of_signed_callers: bool,
    ) -> None:
        self.app = app
        self.submit = submit
        self.policies = policies
        self._routed = len(policies.all()) > 1
        self.admissions = admissions
        self.namespace = namespace
        self.digests = digests
        self.body_timeout = body_timeout
        self.buffered = buffered
        self.unread = unread
        self.cors = cors
        self.date_header = date_header
        self.observe = observe
        self.caller = caller
        self.tokens = tokens
        self.redact = redact
        self.warn_of_signed_callers = warn_of_signed_callers
