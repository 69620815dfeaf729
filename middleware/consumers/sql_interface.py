"""The core's interface for `oncegate.sql`, which imports no other module of it (import-linter holds it to that).

What is not here is the core's own, and may change without a look at inboxes and outboxes.
"""

from oncegate.cache.backoff import Backoff
from oncegate.cache.errors import CacheRefused, CacheUnavailable
from oncegate.cache.record import MAX_SEQUENCE, State, StoredResponse
from oncegate.cache.redis.streams.commands import run_command, stream_client
from oncegate.cache.seconds import given_seconds
from oncegate.middleware.admission.observe import Watch
from oncegate.middleware.admission.shared import notify
from oncegate.middleware.admission.tracing import Traces
from oncegate.middleware.consumers.addresses import Rejected, command_key, delivery_fingerprint
from oncegate.middleware.consumers.begun import Begun
from oncegate.middleware.consumers.delivery import Delivery, DeliveryDecision, SubscriptionSettings, check_names
from oncegate.middleware.consumers.handlers.handling import current, executing, outcomes_of
from oncegate.middleware.consumers.transactional import (
    DeliveryContext,
    Executed,
    LateOutcome,
    RecordsLate,
    set_inbox,
    set_takes_late,
)
from oncegate.middleware.outcome.errors import NotProcessed, NotRetryable, OutcomeUnknown, Parked, reduced
from oncegate.middleware.outcome.raised import kind_and_text
from oncegate.middleware.outcome.results import JSON_CODEC, bounded, dumped, error_form
from oncegate.middleware.rules.checks.arguments import annotations_of, check_watch, excludes, is_async
from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.keys.digests import Digests, Secrets, given_digests
from oncegate.middleware.rules.keys.key import MAX_KEY_CHARACTERS, RECORD_ID, KeyText, key_line, key_text, record_id
from oncegate.middleware.rules.setting_types import NAME, OnMismatch
from oncegate.middleware.rules.versions import aggregate_digest

__all__ = [
    "JSON_CODEC",
    "MAX_KEY_CHARACTERS",
    "MAX_SEQUENCE",
    "NAME",
    "RECORD_ID",
    "Backoff",
    "Begun",
    "CacheRefused",
    "CacheUnavailable",
    "Delivery",
    "DeliveryContext",
    "DeliveryDecision",
    "Digests",
    "Executed",
    "KeyInvalid",
    "KeyText",
    "LateOutcome",
    "NotProcessed",
    "NotRetryable",
    "OnMismatch",
    "OutcomeUnknown",
    "Parked",
    "RecordsLate",
    "Rejected",
    "Secrets",
    "State",
    "StoredResponse",
    "SubscriptionSettings",
    "Traces",
    "Watch",
    "aggregate_digest",
    "annotations_of",
    "bounded",
    "check_names",
    "check_watch",
    "command_key",
    "current",
    "delivery_fingerprint",
    "dumped",
    "error_form",
    "excludes",
    "executing",
    "given_digests",
    "given_seconds",
    "is_async",
    "key_line",
    "key_text",
    "kind_and_text",
    "notify",
    "outcomes_of",
    "record_id",
    "reduced",
    "run_command",
    "set_inbox",
    "set_takes_late",
    "stream_client",
]
