"""A request for admission: what is asked, where its record is, and the claim that is under way for it."""
# Compiled: docs/decisions/0012-compiled.md

import asyncio
import os
import socket
from time import monotonic, time
from typing import Final

from oncegate.cache.record import Claim, ClaimRequest, Trace, takes_over
from oncegate.middleware.admission.attempt import Attempt
from oncegate.middleware.admission.in_flight import InFlight
from oncegate.middleware.admission.limits.slots import Slot
from oncegate.middleware.admission.owner_tokens import TOKENS
from oncegate.middleware.admission.tracing import AttemptTrace
from oncegate.middleware.rules.policy import Policy

_MOST_OF_HOST: Final = 32
_monotonic: Final = monotonic  # a module's own name takes no look into a dict, compiled
_time: Final = time


_ids: Final[dict[str, str]] = {}
"""What `gateway_id` has made."""


def gateway_id(name: str = "") -> str:
    """This process's name in the records that it makes: ``name``, or else the host's, and the process id: ``host/pid``.

    Of a long host name its end, which is where orchestrators put what differs.
    """
    _ids[name] = made = f"{(name or socket.gethostname())[-_MOST_OF_HOST:]}/{os.getpid()}"
    return made


# A forked worker is another gateway. Reading the process id for each claim would be a system call each.
if hasattr(os, "register_at_fork"):  # Windows has none, and never forks
    os.register_at_fork(after_in_child=_ids.clear)


class Address:
    """The place of a request's record by one of the secrets, and its fingerprints by that one.

    ``whole`` is the fingerprint as other policies than ``on_mismatch = "warn"`` make it.
    """

    __slots__ = ("fingerprint", "key", "whole")

    def __init__(self, key: str, fingerprint: bytes, whole: bytes = b"") -> None:
        self.key = key
        self.fingerprint = fingerprint
        self.whole = whole


class Rotation:
    """The two addresses of a request while one secret replaces the other: by the ``first``, and by the ``other`` one.

    By the first one's look-up key its caller is known here, wherever the record is.
    """

    __slots__ = ("first", "other")

    def __init__(self, first: Address, other: Address) -> None:
        self.first = first
        self.other = other

    def beside(self, key: str) -> Address:
        """The one whose look-up key ``key`` is not."""
        return self.first if key == self.other.key else self.other


class Claiming:
    """A claim under way, from `Admissions.enter` to `Admissions.admitted`: its ``slot``, ``None`` while it has none.

    ``claim`` is what was ``sent`` last; ``as_sent``: see `ClaimRequest`. ``attempt`` is there under ``fail_open`` alone: a claim
    that is won late must find it.
    """

    __slots__ = ("as_sent", "attempt", "claim", "is_ready", "sent", "slot", "tasks")

    claim: ClaimRequest
    sent: float

    def __init__(self, slot: Slot | None, as_sent: bool = False) -> None:
        self.slot = slot
        self.as_sent = as_sent
        self.is_ready = False
        """Whatever has to come before the claim is seen to."""
        self.attempt: Attempt | None = None
        self.tasks: tuple[asyncio.Task[None], ...] = ()
        """Bring the answer, where that takes coroutines; cancelled with their caller."""


NO_CLAIM: Final = Claiming(None)
"""Stands for the claim of a request that has none under way."""


class AdmissionRequest:
    """A request for admission: ``wait`` is how many seconds to wait for a concurrent request's outcome, 0 for not at all.

    ``submission``: the command is to be accepted now and processed later. With a ``rotation``, its record may turn out to be at
    the other ``address`` of two. ``until`` is the instant, on the monotonic clock, up to which it waits, 0.0 for not at all.
    ``at_cache`` is how many seconds its claims were on their way.
    """

    # No dataclass: compiled, what those generate takes ten times as long.
    __slots__ = (
        "address",
        "at_cache",
        "claiming",
        "method",
        "policy",
        "raise_on_duplicate",
        "rotation",
        "submission",
        "trace",
        "until",
    )

    def __init__(
        self,
        address: Address,
        policy: Policy,
        wait: float = 0.0,
        raise_on_duplicate: bool = False,
        submission: bool = False,
        method: str = "",
        rotation: Rotation | None = None,
        trace: AttemptTrace | None = None,
    ) -> None:
        self.address = address
        self.method = method
        self.policy = policy
        self.until = _monotonic() + wait if wait > 0 else 0.0
        self.raise_on_duplicate = raise_on_duplicate
        self.submission = submission
        self.rotation = rotation
        self.trace = trace
        self.claiming = NO_CLAIM
        self.at_cache = 0.0

    def prepare(self, in_flight: InFlight) -> None:
        """Make the claim of the record at ``address``, under a token of its own, once there is a slot for it."""
        policy, claiming, trace = self.policy, self.claiming, self.trace
        claiming.sent = sent = _monotonic()
        claiming.claim = ClaimRequest(
            TOKENS.take(sent),
            self.address.fingerprint,
            policy.lease_ms,
            policy.retention_ms,
            policy.takeover,
            Trace(
                _ids.get(policy.process) or gateway_id(policy.process),
                int(_time() * 1000),
                None,
                "",
                self.method,
                policy.route if self.method else "",
                "" if trace is None else trace.span,
            ),
            self.submission,
            claiming.as_sent,
        )
        if policy.fails_open:
            claiming.attempt = self.attempt(in_flight)

    def attempt(self, in_flight: InFlight) -> Attempt:
        """The attempt that the claim under way is made for."""
        claiming = self.claiming
        return Attempt(
            in_flight, self.address.key, claiming.claim, self.policy, claiming.sent, claiming.slot, self.trace
        )

    def may_take_over(self, found: Claim) -> bool:
        """Whether what is ``found`` may be claimed."""
        return takes_over(found.record, self.policy.takeover, self.address.fingerprint, submission=self.submission)
