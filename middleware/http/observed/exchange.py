"""The exchange of a request that is observed: what it would be answered is kept, and neither counted nor logged as an answer."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable, MutableMapping
from time import monotonic
from typing import Any

from oncegate.cache.errors import CacheUnavailable
from oncegate.cache.record import StoredResponse
from oncegate.middleware.admission.admission import Verdict
from oncegate.middleware.admission.observe import SHADOW, Observation
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.exchange import Exchange
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.rules.policy import Policy


class ObservedExchange(Exchange):
    """An observed request's end, as enforcement would have had it: ``observation`` is of the answer, ``None`` where none was due.

    ``result`` is the kept response of the request's first execution, where that is over. ``free`` is called where the request
    would wait for another one (``Prefer: wait``), which what is observed does beside its client.
    """

    __slots__ = ("free", "observation", "result")

    observation: Observation | None
    result: StoredResponse | None

    def __init__(
        self, door: HttpDoor, policy: Policy, scope: MutableMapping[str, Any], free: Callable[[], None]
    ) -> None:
        super().__init__(door, policy, scope)
        self.free = free
        self.observation = None
        self.result = None

    def waits(self) -> None:
        """See `Exchange.waits`. The client doesn't."""
        super().waits()
        self.free()

    def answer_by(self, verdict: Verdict) -> Answer:
        """See `KeyedRequest.answer_by`."""
        self.result = verdict.record.response
        return super().answer_by(verdict)

    def refused(self, error: Exception) -> Answer | Exception:
        """See `KeyedRequest.refused`."""
        if isinstance(error, CacheUnavailable):  # its line in the log would say that the request was refused
            return self.problem("cache-unavailable")
        return super().refused(error)

    def observed(self, decision: str, status: int, attempt: int = 0, *, mismatch: bool = False) -> None:
        """Keep the answer that would have been given."""
        if self.trace is not None:
            self.trace.answered(decision, status, attempt, self.record)
        seconds = monotonic() - self._began
        self.observation = Observation(
            decision, status, attempt, self.record, self.policy.route, self.scope["method"], seconds, mismatch, SHADOW
        )
