"""A record's life in any order of events, against a model: two owners, one of them always late, and time that passes.

In memory; that the scripts of Redis do the same is compared in `tests.cache.test_law`, that rows of a database do in
`tests.cache.sql.test_law_over_rows`.
"""

import os
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from oncegate.cache.record import DEAD_TOKEN, ClaimRequest, Record, State
from oncegate.cache.transitions import Resolution, ResolveRequest
from tests.cache.stores import MemoryStore

T = TypeVar("T")
PRINTS = (b"p" * 16, b"q" * 16)
LEASES = st.sampled_from([200_000, 300_000])
RETENTIONS = st.sampled_from([400_000, 900_000])
TAKEOVERS = st.sets(st.sampled_from([State.FAILED, State.UNKNOWN])).map(frozenset)
OUTCOMES = st.sampled_from([State.SUCCEEDED, State.FAILED, State.UNKNOWN])
TTL = 500_000


@dataclass
class Model:
    """A record as the contract describes it, without bytes, scripts or clocks. ``left`` counts down as time passes."""

    state: State
    token: bytes
    fingerprint: bytes
    attempt: int
    left: int
    retention: int = 0
    found: State = State.ABSENT
    found_left: int = 0
    former: "Model | None" = None

    @property
    def in_flight(self) -> bool:
        return self.state is State.IN_FLIGHT

    @property
    def reads(self) -> State:
        return State.UNKNOWN if self.in_flight and self.left <= self.retention else self.state


class RecordLife(RuleBasedStateMachine):
    """Every rule does the same to the cache and to the model, and compares the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.model: Model | None = None
        self.tokens: list[bytes] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a call that never waits."""
        try:
            work.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        raise AssertionError("a call of the memory cache waits")

    def token_of(self, late: int) -> bytes:
        """The token of the last claim, or of one before it."""
        return self.tokens[-1 - late % len(self.tokens)]

    @rule(lease=LEASES, retention=RETENTIONS, takeover=TAKEOVERS, fingerprint=st.sampled_from(PRINTS))
    def claim(self, lease: int, retention: int, takeover: frozenset[State], fingerprint: bytes) -> None:
        self.tokens.append(os.urandom(16))
        self.claim_with(self.tokens[-1], lease, retention, takeover, fingerprint)

    @precondition(lambda self: self.tokens)
    @rule(late=st.integers(0, 3), lease=LEASES, retention=RETENTIONS)
    def claim_again(self, late: int, lease: int, retention: int) -> None:
        self.claim_with(self.token_of(late), lease, retention, frozenset(), PRINTS[0])

    def claim_with(
        self, token: bytes, lease: int, retention: int, takeover: frozenset[State], fingerprint: bytes
    ) -> None:
        answer = self.run(
            self.store.cache.claim(
                self.store.key,
                ClaimRequest(
                    token=token, fingerprint=fingerprint, lease_ms=lease, retention_ms=retention, takeover=takeover
                ),
            )
        )
        model = self.model
        if model is None:
            self.model = Model(State.IN_FLIGHT, token, fingerprint, 1, lease + retention, retention)
            assert answer.won
        elif model.reads is State.IN_FLIGHT and model.token == token:
            assert answer.won
        elif model.reads in takeover and model.fingerprint == fingerprint:
            self.model = Model(
                State.IN_FLIGHT,
                token,
                fingerprint,
                model.attempt + 1,
                lease + retention,
                retention,
                model.reads,
                model.left,
                replace(model, former=None) if model.in_flight else None,
            )
            assert answer.won
        else:
            assert not answer.won
        assert self.model is not None
        assert answer.record.token == self.model.token
        assert answer.record.attempt == self.model.attempt

    @precondition(lambda self: self.tokens)
    @rule(late=st.integers(0, 3), outcome=OUTCOMES)
    def complete(self, late: int, outcome: State) -> None:
        token, model = self.token_of(late), self.model
        attempt = model.attempt if model else 1
        fingerprint = model.fingerprint if model else PRINTS[0]
        done = self.run(
            self.store.cache.complete(
                self.store.key,
                Record(token=token, fingerprint=fingerprint, attempt=attempt, state=outcome, response=None),
                ttl_ms=TTL,
            )
        )
        assert done == (model is None or model.token == token)
        if model is None or (model.in_flight and model.token == token):
            self.model = Model(outcome, token, fingerprint, attempt, TTL)

    @precondition(lambda self: self.tokens)
    @rule(late=st.integers(0, 3))
    def release(self, late: int) -> None:
        token, model = self.token_of(late), self.model
        done = self.run(self.store.cache.release(self.store.key, token=token))
        assert done == (model is not None and model.in_flight and model.token == token)
        if done and model is not None:
            restored = Model(model.found, DEAD_TOKEN, model.fingerprint, model.attempt - 1, model.found_left)
            restored = model.former or restored
            self.model = None if model.found is State.ABSENT else restored

    @precondition(lambda self: self.tokens)
    @rule(late=st.integers(0, 3), lease=LEASES)
    def renew(self, late: int, lease: int) -> None:
        token, model = self.token_of(late), self.model
        done = self.run(self.store.cache.renew(self.store.key, token=token, lease_ms=lease))
        assert done == (model is not None and model.in_flight and model.token == token)
        if done and model is not None:
            model.left = lease + model.retention

    @rule(state=st.sampled_from([State.SUCCEEDED, State.FAILED, None]), force=st.booleans(), attempt=st.integers(0, 3))
    def resolve(self, state: State | None, force: bool, attempt: int) -> None:
        model = self.model
        done = self.run(self.store.cache.resolve(self.store.key, ResolveRequest(state, None, TTL, force, attempt)))
        if model is None:
            assert done is Resolution.ABSENT
        elif model.reads in (State.SUCCEEDED, State.FAILED):
            assert done is Resolution.SETTLED
        elif attempt not in (0, model.attempt):
            assert done is Resolution.OTHER_ATTEMPT
        elif model.reads is State.IN_FLIGHT and not force:
            assert done is Resolution.IN_FLIGHT
        else:
            assert done is Resolution.RESOLVED
            self.model = Model(state, DEAD_TOKEN, model.fingerprint, model.attempt, TTL) if state else None

    @precondition(lambda self: self.model is not None)
    @rule(milliseconds=st.sampled_from([50_000, 250_000, 1_000_000]))
    def time_passes(self, milliseconds: int) -> None:
        assert self.model is not None
        self.store.pass_time(milliseconds)
        self.model.left -= milliseconds
        if self.model.left <= 0:
            self.model = None

    @invariant()
    def it_reads_as_the_model_does(self) -> None:
        held = self.run(self.store.cache.get(self.store.key))
        assert (held is None) == (self.model is None)
        if held is not None and self.model is not None:
            record = held.record
            assert (record.state, record.token) == (self.model.reads, self.model.token)
            assert (record.attempt, record.fingerprint) == (self.model.attempt, self.model.fingerprint)
            assert held.remaining_ms == self.model.left


def test_a_record_lives_by_the_contract_whatever_happens() -> None:
    run_state_machine_as_test(
        RecordLife,
        settings=settings(
            max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
