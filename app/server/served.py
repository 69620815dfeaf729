"""The app of a server, which can be replaced while connections are open: a request goes by the one that it began with."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable, Coroutine
from typing import Any

from oncegate.app.server.request import InboundRequest
from oncegate.middleware.outcome.problems import Answer


class Served:
    """The recipient of a port's requests: an ASGI ``app``, and what it can do besides, if it has such attributes.

    - ``direct`` takes a whole request that can be answered without a task. ``False``: nothing was done, call the app.
    - ``begun`` is called with each request when its turn has come.
    - ``failure`` is how the app answers a request in which it failed itself; without it, that is a plain 500.
    - ``unshown`` are the headers whose values are nobody's request id (`oncegate.middleware.rules.policies.Policies.unshown`).
    """

    def __init__(self, app: Any) -> None:
        self.replace(app)

    def replace(self, app: Any) -> None:
        """Requests that begin from now on are ``app``'s. Those under way stay with the one that they began with."""
        self.app: Callable[[Any, Any, Any], Coroutine[Any, Any, None]] = app
        self.direct: Callable[[InboundRequest], bool] | None = getattr(app, "direct", None)
        self.begun: Callable[[InboundRequest], None] | None = getattr(app, "begun", None)
        self.failure: Callable[[dict[str, Any]], Answer] | None = getattr(app, "failure", None)
        self.unshown: frozenset[bytes] = getattr(app, "unshown", frozenset())
