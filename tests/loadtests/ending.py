"""For Locust, beside loadtests/locustfile.py: ends a run once each kind in SEEN was sent, and each in FAILING has failed."""

import os
from typing import Any

import gevent
from locust import events
from locust.env import Environment


@events.init.add_listener  # type: ignore[untyped-decorator]  # Locust does not annotate it
def _ends(environment: Environment, **_: Any) -> None:
    awaited = {(kind, False) for kind in os.environ["SEEN"].split(";")}
    awaited |= {(kind, True) for kind in os.environ["FAILING"].split(";") if kind}

    @events.request.add_listener  # type: ignore[untyped-decorator]  # Locust does not annotate it
    def _seen(name: str, exception: BaseException | None, **_: Any) -> None:
        if awaited:
            awaited.discard((name, False))
            awaited.discard((name, exception is not None))
            if not awaited and environment.runner is not None:
                gevent.spawn(environment.runner.quit)
