"""For caches of your own: the protocol, the types of its calls, and the law that it has to obey.

`Cache` says what each call does. `encode` makes bytes of a `Record`, `decode` reads them back by the time that they have left:
a record in flight past its lease reads as ``UNKNOWN``. The checks raise what the call raises for arguments that break the law,
which is `TRANSITIONS`. `oncegate.testing` has the suite that such a cache passes.
"""

from oncegate.cache.codec import decode, encode
from oncegate.cache.errors import (
    CacheError,
    CacheFull,
    CacheUnavailable,
    CacheUnsupported,
    IllegalTransition,
    RecordUnreadable,
)
from oncegate.cache.record import DEAD_TOKEN, Claim, ClaimRequest, Record, State, StoredResponse, Trace
from oncegate.cache.store import Adopt, Cache, CallbackCache, Page, Then, by_callback
from oncegate.cache.transitions import (
    TRANSITIONS,
    Resolution,
    ResolveRequest,
    check_duration,
    check_outcome,
    check_resolution,
    takeover_codes,
)

__all__ = [
    "DEAD_TOKEN",
    "TRANSITIONS",
    "Adopt",
    "Cache",
    "CacheError",
    "CacheFull",
    "CacheUnavailable",
    "CacheUnsupported",
    "CallbackCache",
    "Claim",
    "ClaimRequest",
    "IllegalTransition",
    "Page",
    "Record",
    "RecordUnreadable",
    "Resolution",
    "ResolveRequest",
    "State",
    "StoredResponse",
    "Then",
    "Trace",
    "by_callback",
    "check_duration",
    "check_outcome",
    "check_resolution",
    "check_takeover",
    "decode",
    "encode",
]


def check_takeover(takeover: frozenset[State]) -> None:
    """Raises `IllegalTransition` where one of the states can't be claimed at all."""
    takeover_codes(takeover)
