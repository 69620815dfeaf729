"""A key's story: what has changed between two looks at its record and at the service's entries, in words. No I/O."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Event(NamedTuple):
    """Something that happened: ``at`` is the time of day, ``source`` where it was seen."""

    at: str
    source: str
    text: str


def of_record(before: Row | None, after: Row | None) -> Iterator[str]:
    """The record's part of the story: what differs between two looks by the operators' API."""
    if after is None:
        if before is not None:
            yield "released: the key is free, the next request is a new attempt"
        return
    is_new = before is None or before["attempt"] != after["attempt"]
    if is_new:
        yield f"claimed: attempt {after['attempt']} began"
    state = after["state"]
    if state == "in-flight":
        if is_new:
            yield f"in flight, under a lease of {after['lease_left'] or 0:.0f} s that its gateway renews"
    elif before is None or is_new or before["state"] != state:
        yield _ENDS[state].format(status=after["status"], hours=after["expires_in"] / 3600)


_ENDS = {
    "succeeded": "succeeded: the response {status} is kept for {hours:.0f} h, and is what retries get",
    "failed": "failed: {status} is kept",
    "unknown": "unknown: nobody knows whether it was executed, so retries are refused until somebody has looked",
    "unreadable": "the record can't be read",
}


def of_entries(before: Sequence[Row], after: Sequence[Row]) -> Iterator[str]:
    """The service's part of the story: what it has entered under the key."""
    known = {entry["number"]: entry for entry in before}
    for entry in after:
        earlier = known.get(entry["number"])
        if earlier is None:
            yield f"POST {entry['number']} arrived"
        if entry["payment"] and not (earlier and earlier["payment"]):
            yield f"booked {entry['payment']['id']}"
