"""Every metric, by its name without ``oncegate_``: gateway, apps, consumers, relays, projections. Who counts takes it from here.

A counter's name gets ``_total``, a histogram's ``_seconds``. A label's values are bounded: no key, no caller, no path.
"""

from typing import Final, Literal, NamedTuple

from oncegate.cache.record import State
from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.consumers.delivery import Action, DeliveryDecision
from oncegate.middleware.outcome.problem_kinds import KINDS

CACHE_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
ATTEMPT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)

Mode = Literal["livesum", "mostrecent", "max"]
"""The value of a gauge that counts, of several processes': the sum over those that live, the latest, the largest."""


class CounterFamily(NamedTuple):
    """A counter: its help text, its labels."""

    meaning: str
    labels: tuple[str, ...] = ()


class GaugeFamily(NamedTuple):
    """A gauge: its help text, its labels, and which of several processes' values counts."""

    meaning: str
    labels: tuple[str, ...] = ()
    mode: Mode = "livesum"


class HistogramFamily(NamedTuple):
    """A histogram of seconds: its help text, its label, its buckets' bounds."""

    meaning: str
    label: str
    bounds: tuple[float, ...] = ATTEMPT_BOUNDS


COUNTERS: Final = {
    # of requests, by the gateway and by an app's middleware
    "requests": CounterFamily("Answers to requests, given or observed.", ("route", "method", "decision", "mode")),
    "attempts": CounterFamily("Attempts by their outcome.", ("route", "outcome")),
    "lost_leases": CounterFamily("Running attempts that somebody else took over.", ("route",)),
    "outcomes_refused": CounterFamily("Outcomes that came too late to be recorded.", ("route",)),
    "mismatches_warned": CounterFamily("Other payloads answered under a used key.", ("route",)),
    "cache_errors": CounterFamily("Calls that the cache did not answer or refused.", ("operation",)),
    "readers_dropped": CounterFamily("Connections closed because too much waited for slow readers."),
    # of the gateway alone
    "logins_refused": CounterFamily("Requests with a wrong token for operators."),
    "reloads": CounterFamily("Configurations that were read anew, by what came of it.", ("outcome",)),
    "access_log_dropped": CounterFamily("Lines of the access log that could not be written."),
    "submissions": CounterFamily("Commands for a stream, by what came of them.", ("route", "outcome")),
    "worker_deaths": CounterFamily("Workers that ended unasked."),
    "attempts_lost": CounterFamily("Attempts and unwritten outcomes that died with a worker."),
    # of consumers
    "deliveries": CounterFamily("Deliveries to consumers, by decision.", ("consumer", "decision")),
    "delivery_mismatches_warned": CounterFamily("Other payloads that were taken for the first one's.", ("consumer",)),
    "executions": CounterFamily("Executions by their outcome.", ("consumer", "outcome")),
    "execution_leases_lost": CounterFamily("Executions that somebody else took over.", ("consumer",)),
    "execution_outcomes_refused": CounterFamily("Outcomes that came too late to be recorded.", ("consumer",)),
    "dead_letters": CounterFamily("Deliveries that were given up.", ("consumer", "reason")),
    "inbox_deliveries": CounterFamily("Deliveries to inboxes, by decision.", ("consumer", "decision")),
    "inbox_pruned": CounterFamily("Rows that were deleted because they are old enough.", ("table",)),
    # of relays
    "relay_published": CounterFamily("Messages that the broker has confirmed."),
    "relay_published_again": CounterFamily("Of those, after a try whose outcome nobody knows."),
    "relay_refused": CounterFamily("Messages that the broker has refused."),
    # of projections
    "projection_events": CounterFamily("Events that were applied, and are committed.", ("projection",)),
}
HISTOGRAMS: Final = {
    "upstream": HistogramFamily("From an attempt's begin until its response was whole.", "route"),
    "cache": HistogramFamily("Until the cache answered.", "operation", CACHE_BOUNDS),
    "execution": HistogramFamily("From an execution's begin until its outcome was known.", "consumer"),
}
GAUGES: Final = {
    "build_info": GaugeFamily("The version that runs.", ("version",), "max"),
    # of requests, by the gateway and by an app's middleware
    "attempts_in_flight": GaugeFamily("Attempts that run now."),
    "buffered_bytes": GaugeFamily("Bytes of requests' bodies that wait to be admitted."),
    "unread_bytes": GaugeFamily("Bytes of responses that wait for clients that take less than they are given."),
    "outcomes_waiting": GaugeFamily("Outcomes that the cache has not taken yet."),
    # of the gateway alone
    "enforced_percent": GaugeFamily("Percent of the keys that are under enforcement.", ("route",), "mostrecent"),
    "shadowed": GaugeFamily("Whether what is not under enforcement is observed.", ("route",), "mostrecent"),
    "config_info": GaugeFamily("Processes that serve by the configuration with this digest.", ("digest",), "max"),
    "attempts_limit": GaugeFamily("Attempts that may run at once, over all workers."),
    "buffered_limit_bytes": GaugeFamily("What the bodies that wait to be admitted may be, over all workers."),
    "unread_limit_bytes": GaugeFamily(
        "What may wait for clients that take less than they are given, over all workers."
    ),
    "route_matched": GaugeFamily("Whether a request has matched the route since the start.", ("route", "methods")),
    "tunnels": GaugeFamily("WebSockets that are open."),
    "cache_readable": GaugeFamily("Whether the cache answers."),
    "cache_writable": GaugeFamily("Whether it takes records."),
    "tls_cert_ends_timestamp_seconds": GaugeFamily("When the certificate in use ends.", (), "mostrecent"),
    "memory_cache_bytes": GaugeFamily("What the records in memory count for."),
    "memory_cache_limit_bytes": GaugeFamily("What they may count for."),
    "records": GaugeFamily("Records of the cache, when they were counted.", ("state",)),
    "records_sampled_timestamp_seconds": GaugeFamily("When that was."),
    # of consumers
    "executions_in_flight": GaugeFamily("Executions that run now.", ("consumer",)),
    "execution_outcomes_waiting": GaugeFamily("Outcomes that the cache has not taken yet."),
    "inbox_rows": GaugeFamily("Rows of an inbox's table, when it was measured.", ("table",), "mostrecent"),
    "inbox_oldest_timestamp_seconds": GaugeFamily("When its oldest row was written.", ("table",), "mostrecent"),
    "inbox_aggregates_waiting": GaugeFamily("Aggregates that wait for a number.", ("consumer",), "mostrecent"),
    "inbox_parked_messages": GaugeFamily(
        "Messages that wait for the number before theirs.", ("consumer",), "mostrecent"
    ),
    "inbox_parked_oldest_timestamp_seconds": GaugeFamily(
        "Since when the oldest one waits.", ("consumer",), "mostrecent"
    ),
    # of relays
    "outbox_rows": GaugeFamily("Rows of outboxes that wait, up to 100,000, when they were counted.", (), "mostrecent"),
    "outbox_oldest_timestamp_seconds": GaugeFamily(
        "When the oldest of them was added; 0 without one.", (), "mostrecent"
    ),
    "outbox_held": GaugeFamily(
        "Rows that were refused, or are given up, and hold up their aggregates.", (), "mostrecent"
    ),
    # of projections
    "projection_rows_behind": GaugeFamily(
        "Rows that are to be applied, up to 100,000, when they were counted.", ("projection",), "mostrecent"
    ),
    "projection_stuck_timestamp_seconds": GaugeFamily(
        "Since when an event's handler fails; 0 where none does.", ("projection",), "mostrecent"
    ),
    "projection_stuck_position": GaugeFamily(
        "That event's position; 0 where none fails.", ("projection",), "mostrecent"
    ),
}

# -- labels' values -------------------------------------------------------------------------------------------------------

OPERATIONS: Final = ("claim", "renew", "complete", "release", "get")
"""Calls of a cache that requests wait for."""
RELEASED: Final = "released"
OUTCOMES: Final = (State.SUCCEEDED, State.FAILED, State.UNKNOWN)
DECISIONS: Final = tuple(dict.fromkeys([*(decision.value for decision in GateDecision), *KINDS]))
OTHER: Final = "other"
FROM_THE_START: Final = ("outcome-unknown", "cache-unavailable", "overloaded", "record-unreadable")
"""Decisions that alerts are made of (docs/deploy/alerts.yaml): a series that began at 1 would have had no increase."""
RELOADS: Final = ("applied", "refused")
"""Results of a reload."""
SUBMISSIONS: Final = ("accepted", "conflict", "full", "unavailable")
"""Results of a submission."""
LETTER_REASONS: Final = (
    *[decision.value for decision in DeliveryDecision if decision.action is Action.DEAD_LETTER],
    "undecodable",
)
INBOX_DECISIONS: Final = ("first", "duplicate", "stale", "early", "forked", "mismatch", "forgotten", "unmarked")
