"""One request under enforcement: reads its key, caller and fingerprint, and makes its answers. Without I/O.

What comes between is the exchange's (`oncegate.middleware.http.exchange`).
"""
# Compiled: docs/decisions/0012-compiled.md

import logging
from collections.abc import MutableMapping
from math import ceil
from time import monotonic
from typing import Any, Final

from oncegate.cache.errors import CacheUnavailable, RecordUnreadable
from oncegate.cache.record import State
from oncegate.cache.trace import trace_id_of
from oncegate.middleware.admission.admission import Verdict
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.admission.observe import ENFORCED, Observation
from oncegate.middleware.admission.tracing import RequestTrace
from oncegate.middleware.http.apps.functions import named_caller
from oncegate.middleware.http.door import HttpDoor
from oncegate.middleware.http.identity import (
    COOKIES_ALONE,
    nameless_scope,
    request_key,
    warned_of,
)
from oncegate.middleware.outcome import responses
from oncegate.middleware.outcome.problems import (
    INVALID_TOKEN,
    LOGIN,
    RETRY_AFTER_SECONDS,
    Answer,
    challenge,
    original_result,
    problem,
)
from oncegate.middleware.rules.errors import CallerInvalid, CookieAlone, Refusal, TooManyKeys
from oncegate.middleware.rules.headers.request_id import ids, request_id
from oncegate.middleware.rules.keys.key import Fields, LastCaller, pick, record_digests, record_key, scope_parts
from oncegate.middleware.rules.policy import ATTEMPT_HEADER, Policy
from oncegate.middleware.rules.prefer import Preferences, wants_async
from oncegate.middleware.rules.versions import AggregateVersion
from oncegate.middleware.tokens.verifier import Tokens

log = logging.getLogger("oncegate.http")

OBSERVER_FAILED: Final = "the observer failed"
MISMATCHED: Final = "mismatch-warned"
"""The decision that a replay counts as whose payload was another one (``on_mismatch = "warn"``)."""

# Members of an enumeration, and what a module imports, take long to look up.
_REPLAY: Final = GateDecision.REPLAY
_FIRST: Final = GateDecision.RUN.value
_BYPASS: Final = GateDecision.BYPASS.value
_REPLAYED: Final = GateDecision.REPLAY.value
_now: Final = monotonic
_named: Final = tuple.__new__
"""Makes a named tuple in half the time of its own constructor."""
Headers = list[tuple[bytes, bytes]]


class KeyedRequest:
    """One request under ``policy``: `identify` comes first, then one of the answers.

    ``key`` is ``None`` until one was read. ``record`` is the record's id. ``fields`` are the headers of interest.
    ``preferences`` are there where it has some that its answer may have to name.
    """

    __slots__ = (
        "_began",
        "_generated",
        "_key_line",
        "_names_attempt",
        "door",
        "fields",
        "key",
        "other_key",
        "policy",
        "preferences",
        "record",
        "scope",
        "trace",
        "version",
    )

    version: AggregateVersion | None
    """The aggregate of a submission that gets a number, and what is expected of it."""

    def __init__(self, door: HttpDoor, policy: Policy, scope: MutableMapping[str, Any]) -> None:
        self.policy = policy
        self.fields: Fields = {}
        self.key: str | None = None
        self.record = ""
        self.other_key = ""
        """The look-up key by the other secret, while two are in use."""
        self.door = door
        self.scope = scope
        self.trace: RequestTrace | None = None if door.traces is None else door.traces.of(scope, policy)
        self._began = _now()
        self._key_line = b""
        self._generated = False
        self._names_attempt = False
        self.preferences: Preferences | None = None

    # -- who sends it, and under which key -----------------------------------------------------------------------------

    def identify(  # noqa: C901 - a loop in place of a comprehension, which takes a call: each request with a key comes here
        self, named: dict[bytes, bytes] | None = None, last: LastCaller | None = None, *, waited: bool | None = None
    ) -> str | Answer | Tokens | None:
        """The look-up key of the request's record, ``None`` where no key came, or its answer where it is refused.

        ``named`` are the scope's headers by name, where a server has them so, without white space around the values; ``last`` is
        who called last on the connection.
        `Tokens` where the keys come first by which its caller's token is verified: await their `refreshed`, and call this once
        more, with what that returned as ``waited``.
        """
        policy, headers = self.policy, self.scope["headers"]
        if named is None or len(named) != len(headers):  # a name that comes twice has more than one value
            fields = pick(headers, policy.wanted)
        else:
            fields = {}
            for name in policy.wanted if last is None else last.names(named, policy.wanted):
                if name in named:
                    fields[name] = [named[name]]
        self.fields = fields
        self._names_attempt = ATTEMPT_HEADER in fields
        try:
            found = request_key(fields, policy)
            if found is None:
                return None
            key, line, generated = found
            if policy.key_form is not None:
                policy.key_form.check(key)  # before the key is there, which is echoed
            self.key, self._key_line, self._generated = key, line, generated
            if policy.submission is not None:
                policy = self._submitted(policy, policy.submission)
            if self.door.caller is not None:
                caller: list[bytes] | None = named_caller(self.door.caller, self.scope, policy)
            else:
                tokens = self.door.tokens
                if tokens is not None and policy.claims and not tokens.add_claims(fields, policy.claims, waited=waited):
                    return tokens
                caller = scope_parts(fields, policy.scope_names) or nameless_scope(fields, policy, self._generated)
        except Refusal as refusal:
            if isinstance(refusal, CookieAlone) and self.door.warn_of_cookies:
                self.door.warn_of_cookies = False
                log.warning(COOKIES_ALONE)
            return self.problem(refusal.slug, str(refusal))
        door = self.door
        digests = door.digests
        self.record = record_digests(self.key, caller, digests, last)
        if digests.former is not None:
            self.other_key = record_key(door.namespace, self.key, caller, digests.former)
        if door.warn_of_signed_callers and b"authorization" in fields:
            door.warn_of_signed_callers = not warned_of(fields[b"authorization"][0])
        return door.namespace + ":" + self.record  # a formatted string takes three times as long

    def _submitted(self, policy: Policy, submission: Policy) -> Policy:
        """The rules that hold: those for a ``submission``, if the request is one. Raises what `Aggregates.version` raises."""
        if wants_async(self.fields):
            self.preferences = Preferences(respond_async=True)
        elif policy.mode != "async":
            return policy
        self.policy = submission
        aggregates = submission.aggregates
        self.version = None if aggregates is None else aggregates.version(self.fields, self.scope)
        return submission

    def headers(self, attempt: Attempt | None = None) -> Headers:
        """The request's headers as the app gets them: the attempt's number is ours, never the client's."""
        headers: list[Any] = [*self.scope["headers"]]  # a server's own, which may give its lines as lists
        if self._names_attempt:
            headers = [line for line in headers if line[0] != ATTEMPT_HEADER]
        if attempt is not None and attempt.number:
            headers.append((ATTEMPT_HEADER, b"%d" % attempt.number))
        if self._generated:
            headers.append((self.policy.key_names[0], self._key_line))
        if self.trace is not None and attempt is not None:
            stream = self.policy.stream if attempt.claim.submission else ""
            headers = self.trace.attempt_headers(headers, self.record, stream=stream)
        return headers

    # -- how it is answered -------------------------------------------------------------------------------------------

    def executed(self, attempt: Attempt, status: int, headers: Headers, lines: bytes = b"") -> tuple[Headers, bytes]:
        """The headers of the response that this request's own attempt produced, and those that can be sent as lines before them.

        ``lines`` are the upstream's ``headers`` as they can be sent, if they can.
        """
        recorded = attempt.number > 0  # without a record, nothing is enforced
        self.observed(_FIRST if recorded else _BYPASS, status, attempt.number)
        if attempt.claim.submission:
            if self.preferences is not None:
                self.preferences.accepted = True
            cors = self.door.cors
            if cors is not None:  # the answer is the gateway's own
                headers = [*headers, *cors.headers(self.scope["headers"])]
        headers, lines = responses.executed(
            headers, lines, status, policy=self.policy, key_line=self._key_line, recorded=recorded
        )
        if self.preferences is not None:
            self.preferences.add_applied(headers)
        return headers, lines

    def answer_by(self, verdict: Verdict) -> Answer:
        """The answer to a request that is not to run."""
        record, decision = verdict.record, verdict.decision
        if verdict.mismatch:
            log.warning(
                "record %s: another payload under a used key; answered by on_mismatch = warn",
                self.record,
                extra=self.ids(),
            )
            if decision is _REPLAY and self.door.count_refusal is not None:
                self.door.count_refusal(self, MISMATCHED)
        extra: dict[str, Any] | None = None
        if self.trace is not None and record.trace.span:
            self.trace.found(record.trace.span)
            extra = {"original_trace_id": trace_id_of(record.trace.span)}
        if decision is _REPLAY:
            if self.preferences is not None:
                self.preferences.accepted = record.submission and record.state is State.SUCCEEDED
            policy, line, ready, left_ms = self.policy, self._key_line, record.ready, verdict.remaining_ms
            if ready is not None:
                answer = responses.replay_as_sent(ready, left_ms, policy, line)
                return self._answer(answer, _REPLAYED, record.attempt, mismatch=verdict.mismatch)
            if record.response is not None:
                answer = responses.replay(record.response, left_ms, policy=policy, key_line=line)
                return self._answer(answer, _REPLAYED, record.attempt, mismatch=verdict.mismatch)
        if decision is GateDecision.DUPLICATE:
            extra = (extra or {}) | {"original_result": original_result(record.whole_response())}
        return self.problem(decision.value, attempt=record.attempt, extra=extra, mismatch=verdict.mismatch)

    def refused(self, error: Exception) -> Answer | Exception:
        """The answer to a request that ended in ``error``, or ``error`` itself, where there is no answer for it."""
        if isinstance(error, TooManyKeys):
            return self.problem(error.slug, str(error), retry_after=max(1, ceil(error.seconds)))
        if isinstance(error, Refusal):
            return self.problem(error.slug, str(error))
        if isinstance(error, RecordUnreadable):
            log.error("record %s: %s", self.record, error, extra=self.ids())
            return self.problem("record-unreadable")
        if isinstance(error, CacheUnavailable):
            log.warning("record %s: refused, the cache is unavailable: %s", self.record, error, extra=self.ids())
            return self.problem("cache-unavailable")
        return error

    def problem(
        self,
        slug: str,
        detail: str = "",
        *,
        attempt: int = 0,
        retryable: bool | None = None,
        extra: dict[str, Any] | None = None,
        mismatch: bool = False,
        retry_after: int = RETRY_AFTER_SECONDS,
    ) -> Answer:
        """The problem ``slug`` as the answer; see `oncegate.middleware.outcome.problems.problem`."""
        answer = problem(
            slug,
            detail,
            docs_url=self.policy.settings.docs_url,
            key=self.key,
            record=self.record or None,
            request_id=request_id(self.scope, self.policy.unshown),
            retryable=retryable,
            extra=extra,
            retry_after=retry_after,
        )
        if self.door.count_refusal is not None:
            self.door.count_refusal(self, slug)
        if self.key is not None:
            answer.headers.append((self.policy.key_names[0], self._key_line))
        if answer.status == 401:
            answer.headers.append(self._challenge(slug))
        if answer.status in (408, 413) and self.scope.get("http_version", "1.1").startswith("1"):
            answer.headers.append((b"connection", b"close"))  # the rest of the body is not worth waiting for
        return self._answer(answer, slug, attempt, mismatch=mismatch)

    def _challenge(self, slug: str) -> tuple[bytes, bytes]:
        if self.door.caller is not None:
            return LOGIN
        if slug == CallerInvalid.slug:
            return INVALID_TOKEN
        claims = self.policy.claims
        return challenge([name for name in self.policy.scope_names if name not in claims], token=bool(claims))

    def _answer(self, answer: Answer, decision: str, attempt: int, *, mismatch: bool = False) -> Answer:
        self.observed(decision, answer.status, attempt, mismatch=mismatch)
        if self.preferences is not None:
            self.preferences.add_applied(answer.headers)
        cors = self.door.cors
        if cors is not None:
            if decision == _REPLAYED:
                answer.headers, answer.lines = cors.replayed(self.scope["headers"], answer.all_headers()), b""
            else:
                answer.headers += cors.headers(self.scope["headers"])
        if self.door.date_header:
            answer.headers.append(responses.date())
        return answer

    def observed(self, decision: str, status: int, attempt: int = 0, *, mismatch: bool = False) -> None:
        """Call ``observe`` with the answer. Its errors are only logged."""
        observe = self.door.observe
        if self.trace is not None:
            self.trace.answered(decision, status, attempt, self.record)
        if observe is not None:
            route, method = self.policy.route, self.scope["method"]
            values = (
                decision,
                status,
                attempt,
                self.record,
                route,
                method,
                _now() - self._began,
                mismatch,
                ENFORCED,
            )
            try:
                observe(_named(Observation, values), self)
            except Exception:  # a user's observer must not decide about a payment
                log.exception(OBSERVER_FAILED, extra=self.ids())

    def ids(self) -> dict[str, str]:
        """The members of a log's line about the request."""
        return ids(self.scope, self.policy.unshown)
