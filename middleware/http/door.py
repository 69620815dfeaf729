"""The parts that all requests to one app share: its policies, limits and observers."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from oncegate.middleware.admission.admission import Admissions
from oncegate.middleware.admission.buffers import Buffered, Unread
from oncegate.middleware.admission.observe import Observation
from oncegate.middleware.admission.tracing import RequestTraces
from oncegate.middleware.http.apps.functions import Caller, Redact
from oncegate.middleware.http.asgi import App
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.rules.keys.digests import Digests
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.tokens.verifier import Tokens

if TYPE_CHECKING:
    from oncegate.middleware.http.enter import Bypass
    from oncegate.middleware.http.keyed_request import KeyedRequest

Observing = Callable[[Observation, Union["KeyedRequest", "Bypass"]], None]
"""As `oncegate.middleware.admission.observe.Observe`; it gets the request, too, which has a ``scope`` and `ids`."""
CountRefusal = Callable[["KeyedRequest", str], None]
"""Called with a request that is refused, and the problem's slug; and with one that is answered although another payload came with
its key. Must be quick, and not raise.
"""


@dataclass(slots=True)
class HttpDoor:
    """The settings of an `oncegate.middleware.http.middleware.IdempotencyMiddleware`, ready for requests.

    A class of its own because it is compiled, which the middleware can't be: servers inspect an app's ``__call__``.
    """

    app: App
    submit: App
    policies: Policies
    admissions: Admissions
    namespace: str
    digests: Digests
    body_timeout: float
    buffered: Buffered
    unread: Unread
    date_header: bool
    cors: CrossOrigin | None
    observe: Observing | None
    caller: Caller | None
    tokens: Tokens | None
    redact: Redact | None
    warn_of_signed_callers: bool
    warn_of_cookies: bool
    traces: RequestTraces | None
    shadow: "HttpDoor | None" = None
    """The same for what is observed; ``None`` where nothing is (`oncegate.middleware.http.observed.shadow`)."""
    count_refusal: CountRefusal | None = None
