"""A claim while one secret replaces the other: its record is at one of two addresses, and no two copies of it may both run.

A part beside the core: it is there for a deployment with two secrets, and no other request meets a line of it.
"""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Callable, Coroutine
from typing import Any

from oncegate.cache.record import Claim
from oncegate.middleware.admission.in_flight import InFlight
from oncegate.middleware.admission.request import AdmissionRequest, Rotation
from oncegate.middleware.rules.errors import MOST_TURNS, overtaken

Send = Callable[[AdmissionRequest], Coroutine[Any, Any, Claim]]
"""Sends the claim that was prepared."""


async def claim_at_either(request: AdmissionRequest, rotation: Rotation, in_flight: InFlight, send: Send) -> Claim:
    """A claim where the record is, and by the first secret where there is none.

    The two addresses can't be claimed in one step. So who has won at one looks at the other afterwards: of two claims that
    are made at once, by gateways that differ in which secret comes first, the later one sees the earlier one, and is
    given back. Both may be; neither is executed then.
    """
    cache = in_flight.shared.cache
    for _ in range(MOST_TURNS):
        is_at_other = await cache.get(rotation.other.key) is not None
        request.address = rotation.other if is_at_other else rotation.first
        request.prepare(in_flight)
        found = await send(request)
        if not found.won:
            return found
        beside = rotation.beside(request.address.key)
        try:
            there = await cache.get(beside.key)
            if there is None:
                return found
            await cache.release(request.address.key, token=request.claiming.claim.token)
        except Exception:
            in_flight.withdraw(request.attempt(in_flight))
            raise
        request.address = beside
        if not request.may_take_over(there):
            return there
    raise overtaken("request")


async def read_at_either(request: AdmissionRequest, rotation: Rotation, in_flight: InFlight) -> Claim | None:
    """The record, and the request is where that is; ``None`` where there is none."""
    for address in (rotation.other, rotation.first):
        request.address = address
        found = await in_flight.shared.timed("get", in_flight.shared.cache.get(address.key))
        if found is not None:
            return found
    return None
