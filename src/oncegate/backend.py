"""For caches of your own: the protocol, the types of its calls, and the law that it has to obey, as functions to be executed.

`Cache` says what each call does. `claim`, `renew`, `complete`, `release` and `resolve` decide what that is: each takes what is
held, as it reads at one instant (``None``: no record, or an expired one), and gives a `Move`, which the store makes within the
same atomic step. `encode` makes bytes of a `Record`, `decode` reads them back by the time that they have left: a record in flight
past its lease reads as ``UNKNOWN``. The checks of arguments are for stores that decide in another way.
`oncegate.testing` has the suite that such a cache passes.
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
from oncegate.cache.store import Cache, Page
from oncegate.cache.transitions import (
    REMOVED,
    TRANSITIONS,
    UNCHANGED,
    Move,
    Resolution,
    ResolveRequest,
    check_duration,
    check_outcome,
    check_resolution,
    check_takeover,
    claim,
    complete,
    release,
    renew,
    resolve,
)

__all__ = [
    "DEAD_TOKEN",
    "REMOVED",
    "TRANSITIONS",
    "UNCHANGED",
    "Cache",
    "CacheError",
    "CacheFull",
    "CacheUnavailable",
    "CacheUnsupported",
    "Claim",
    "ClaimRequest",
    "IllegalTransition",
    "Move",
    "Page",
    "Record",
    "RecordUnreadable",
    "Resolution",
    "ResolveRequest",
    "State",
    "StoredResponse",
    "Trace",
    "check_duration",
    "check_outcome",
    "check_resolution",
    "check_takeover",
    "claim",
    "complete",
    "decode",
    "encode",
    "release",
    "renew",
    "resolve",
]
