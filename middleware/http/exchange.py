"""The exchange: one request under enforcement from its claim to its answer, as a state machine without I/O.

A driver does the I/O: it feeds in what has happened, and does what comes back. There are two,
`oncegate.middleware.http.asgi_driver` (for every case, by coroutines) and the gateway's fast path (by callbacks).

    identify ─ admit ─ on_claimed ┬ run ── begin ── on_response ── recorded ── executed: answered
                  │               │               ├ on_failure ── failed: answered, or raised
                  │               │               └ on_lease_lost: claimed once more
                  │               ├ wait ─ waits ── on_waited
                  │               ├ step aside
                  └───────────────┴ answered
"""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from oncegate.cache.record import State, StoredResponse, stored_response
from oncegate.middleware.admission.admission import Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.lease import LeaseLost, Unconfirmed
from oncegate.middleware.admission.request import Address, AdmissionRequest, Rotation
from oncegate.middleware.http.apps.functions import redacted
from oncegate.middleware.http.asgi import SCOPE_EXTENSION, AttemptView, Submission
from oncegate.middleware.http.keyed_request import KeyedRequest
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.errors import ENDS_PROCESS, GatewayFailed, NotAccepted, NotProcessed, OutcomeUnknown
from oncegate.middleware.outcome.problems import Answer
from oncegate.middleware.outcome.raised import kind_and_text, outcome_of
from oncegate.middleware.rules.errors import MOST_TURNS, overtaken
from oncegate.middleware.rules.keys.key import Fields, fingerprint, forgiving, record_id
from oncegate.middleware.rules.policy import PREFER, RAISE_HEADER
from oncegate.middleware.rules.prefer import Preferences, wanted_wait, wants_error
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.http")

Step = Attempt | Verdict | Answer | AttemptView | Exception | None
"""The driver's next step.

| step | next |
| --- | --- |
| `Attempt` | `Exchange.begin` it, and execute the request |
| `Verdict` | `Exchange.waits`: wait for the attempt in the way, then `Exchange.on_waited` |
| `Answer` | send it |
| `AttemptView` | step aside: the record in the way is that of this attempt, by another middleware around this one |
| an exception | raise it to the server: there is no answer for it |
| ``None`` | send the claim |
"""

_ALWAYS_MS: Final = 2**52
_READ: Fields = {}
# Members of an enumeration take long to look up.
_IN_FLIGHT: Final = GateDecision.IN_FLIGHT
_UNKNOWN: Final = State.UNKNOWN
_OF_UNKNOWN: Final = ("upstream-failed", "gateway-failed")
"""The problems whose outcome is unknown."""


class Exchange(KeyedRequest):
    """One request with a key: `identify` comes first. What it needs of the request, and its answers, are `KeyedRequest`'s.

    Its ``fields`` are there up to `admit`, ``attempt`` from `begin` on; ``raised`` is what its command raised, for who called.
    ``found`` is what its driver goes on by (`oncegate.middleware.http.enter.way_of` sets it, to what `identify` returns): with a
    look-up key its body is to be read, an `Answer` is to be sent, and `Tokens` are to be waited for.
    """

    __slots__ = ("_lost", "_problem", "_wait", "admission", "attempt", "found", "raised")

    found: str | Answer | Tokens | None

    admission: AdmissionRequest
    attempt: Attempt
    raised: BaseException | None
    _lost: int
    _wait: float
    _problem: tuple[str, str, dict[str, Any] | None] | None

    # -- requested, admitted ------------------------------------------------------------------------------------------

    def admit(self, look_up_key: str, body: bytes) -> AdmissionRequest:
        """The request is whole: what is to be claimed for it."""
        scope, policy, fields = self.scope, self.policy, self.fields
        method, path = scope["method"], scope.get("raw_path") or scope["path"].encode()
        query = scope.get("query_string", b"")
        as_json, digests = len(body) <= policy.json_bytes, self.door.digests
        whole = fingerprint(method, path, query, body, as_json=as_json, digests=digests)
        self.fields = _READ  # they would be kept for as long as the cache and the upstream are waited for
        self._lost = 0
        wait: float = wanted_wait(fields, policy, policy.wait) if PREFER in fields else policy.wait
        if wait > 0 and self._outer() is not None:  # its attempt would not end while we wait for it
            wait = 0.0
        self._wait = wait
        self.admission = admission = AdmissionRequest(
            Address(look_up_key, forgiving(method, path, whole, digests) if policy.warns else whole, whole),
            policy,
            wait,
            policy.raise_on_duplicate or (RAISE_HEADER in fields and wants_error(fields[RAISE_HEADER])),
            bool(policy.stream),
            method,
            None,
            self.trace,
        )
        former = digests.former
        if former is not None:
            whole = fingerprint(method, path, query, body, as_json=as_json, digests=former)
            marked = forgiving(method, path, whole, former) if policy.warns else whole
            admission.rotation = Rotation(admission.address, Address(self.other_key, marked, whole))
        return admission

    def on_claimed(self, reply: Any) -> Step:
        """The cache has answered the claim: a `Claim`, or an error. Raises nothing: who calls back has nothing to do with it."""
        if self.other_key:
            self.record = record_id(self.admission.address.key)
        try:
            outcome = self.door.admissions.admitted(self.admission, reply)
            if isinstance(outcome, Attempt):
                return outcome
            if outcome.decision is _IN_FLIGHT and self.admission.until > 0.0:
                return outcome
            return self.on_waited(outcome) if self.scope.get("extensions") else self.answer_by(outcome)
        except Exception as error:  # noqa: BLE001 - answered, or passed on
            return self.refused(error)

    def waits(self) -> None:
        """The driver waits for the attempt in the way, as the request prefers."""
        if self.preferences is None:
            self.preferences = Preferences()
        self.preferences.waited = int(self._wait)

    def on_waited(self, verdict: Verdict | None) -> Step:
        """There is nothing to wait for any more: ``None`` where the attempt in the way has gone without an outcome."""
        if verdict is None:
            return None
        # The owner token shows it, so that it holds whatever names the same store: two connections, two URLs.
        outer = self._outer()
        if outer is not None and verdict.record.token == outer.token:
            return outer
        return self.answer_by(verdict)

    def _outer(self) -> AttemptView | None:
        """The attempt of another middleware around this one, where it is under the same key of the same caller."""
        given = self.scope.get("extensions")
        view = given.get(SCOPE_EXTENSION) if given else None
        if not isinstance(view, AttemptView):
            return None
        same = view.record == self.record or (self.other_key != "" and view.record == record_id(self.other_key))
        return view if same else None

    def submission(self, attempt: Attempt) -> Submission:
        """The submission that is accepted with the request, in the place of executing it in ``attempt``."""
        policy = self.policy
        # A first attempt has found no record: one that was accepted longer ago than that has had its time, and the key is free
        # again. What an attempt has taken over was in doubt, however long ago it was appended.
        known_ms = policy.ttl_ms[State.SUCCEEDED] if attempt.number == 1 else _ALWAYS_MS
        return Submission(self.key or "", attempt.claim, policy, self.version, known_ms)

    # -- run, recorded ------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt, loop: asyncio.AbstractEventLoop, lasts: Callable[[], None]) -> None:
        """The request is executed from now on, as ``attempt``, which has its slot. ``lasts`` is called once that takes long."""
        self.attempt = attempt
        attempt.lease.scope = self.scope
        self.raised = self._problem = None
        self.door.admissions.in_flight.begin(attempt, loop, lasts)

    def on_response(
        self,
        status: int,
        headers: responses.Headers,
        body: bytes | None,
        then: Callable[[], None],
        scope: dict[str, Any] | None = None,
    ) -> None:
        """The response is whole: record it. ``then`` is called when it is recorded, or will be as soon as the cache answers.

        ``body`` is ``None`` where it was too large to be kept. ``scope`` is the app's, which may have added to it.
        """
        policy = self.policy
        state = policy.state(status)
        if self.trace is not None:
            self.trace.response_came(status)
        if state is None:
            self._settle(None, None, then)
            return
        if state is _UNKNOWN or (body is not None and len(body) > policy.max_result):
            body = None
        kept: StoredResponse | None = responses.stored(status, headers, body, policy.unstored)
        redact = self.door.redact
        if redact is not None and kept is not None:
            try:
                given = {**self.scope} if scope is None else scope
                kept = redacted(redact, given, kept, policy, self.record, self.ids)
            except ENDS_PROCESS:
                self._settle(state, None, then)
                raise
        if not policy.keeps_body and kept is not None:
            kept = stored_response(kept.status, (), None, kept.completed_at_ms)
        self._settle(state, kept, then)

    def on_failure(
        self,
        error: BaseException,
        then: Callable[[], None] | None = None,
        *,
        begun: bool = False,
        late: bool = False,
        client_gone: bool = False,
    ) -> None:
        """There is no whole response, since ``error`` came out of the command: `failed` is the answer. ``then``: as above.

        ``begun``: the response has begun; ``late``: after ``attempt_timeout``; ``client_gone``: nobody waits for it any more.
        """
        state, note = outcome_of(error, overdue=late)
        kept: StoredResponse | None = None
        if isinstance(error, LeaseLost):
            # A response that has begun can't be begun anew.
            self.raised = error if not begun else RuntimeError("confirmed after its response had begun")
        elif isinstance(error, Unconfirmed):
            self._problem = "cache-unavailable", "", None
        elif isinstance(error, NotAccepted):
            level = logging.WARNING if error.members is None else logging.DEBUG  # else it is the caller's to mend
            log.log(level, "record %s: not accepted: %s", self.record, kind_and_text(error)[1], extra=self.ids())
            self._problem = error.slug, str(error), error.members
            # Submitting again is harmless, and takes over what is unknown. To execute it beside its copy would not be, which
            # a request can only ask for where the mode is "either".
            if error.copied and self.policy.mode == "either":
                state, note = State.UNKNOWN, "the command stream did not answer"
        elif isinstance(error, NotProcessed):
            log.warning("record %s: nothing was sent: %s", self.record, kind_and_text(error)[1], extra=self.ids())
            self._problem = "upstream-unreachable", "", None
        elif isinstance(error, OutcomeUnknown):
            self._on_unknown(error, note)
        elif isinstance(error, ENDS_PROCESS):
            self.raised = error
        elif state is State.UNKNOWN:
            self._problem = "upstream-failed", f"The attempt {note}: its outcome is unknown.", None
        else:  # its failure, kept and raised again
            self.raised = error
            if client_gone:  # the server has no client left to answer
                log.error(
                    "record %s: the app raised after its client had left", self.record, exc_info=error, extra=self.ids()
                )
            kept, note = responses.stored_exception(), f"raised {type(error).__qualname__}"
        self._settle(state, kept, then, note)

    def _on_unknown(self, error: OutcomeUnknown, note: str) -> None:
        if isinstance(error, GatewayFailed):
            log.error(
                "record %s: a request failed, its outcome is unknown", self.record, exc_info=error, extra=self.ids()
            )
            self._problem = "gateway-failed", "", None
        else:
            log.warning("record %s: the outcome is unknown: %s", self.record, note, extra=self.ids())
            self._problem = "upstream-failed", "", None

    def _settle(
        self, state: State | None, kept: StoredResponse | None, then: Callable[[], None] | None, note: str = ""
    ) -> None:
        self.attempt.settle(state, kept, note=note, then=then)
        self.attempt.over()

    # -- answered -----------------------------------------------------------------------------------------------------

    def unanswered(self) -> Answer:
        """The answer where ``response_timeout`` is over before the response has begun."""
        return self.problem("upstream-timeout", attempt=self.attempt.number)

    def failed(self) -> Answer | None:
        """The answer after `on_failure`; ``None`` where the server answers, since the app raised, or nothing was begun."""
        if self._problem is not None:
            slug, detail, extra = self._problem
            retryable = _UNKNOWN in self.policy.takeover if slug in _OF_UNKNOWN else None
            return self.problem(slug, detail, attempt=self.attempt.number, retryable=retryable, extra=extra)
        if not isinstance(self.raised, LeaseLost):
            self.observed(GateDecision.RUN.value, 500, self.attempt.number)
        return None

    def on_lease_lost(self) -> Step:
        """The attempt was taken over before it began: the request is decided anew, a few times."""
        self._lost += 1
        return None if self._lost < MOST_TURNS else self.refused(overtaken("request"))
