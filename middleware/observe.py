"""What can be told of each enforced request: for the demo, for metrics, for logs. Never a key, a caller or a body."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Observation:
    """One answered request: ``decision`` is a `Decision`'s value or a problem's slug; ``seconds`` is to the answer's head.

    ``attempt`` is the number of the attempt that ran or is told of, 0 where there is none; ``record`` is the record's id,
    empty where there is no key; ``route`` is the route's pattern, ``*`` for the default.
    """

    decision: str
    status: int
    attempt: int
    record: str
    route: str
    method: str
    seconds: float


Observe = Callable[[Observation], None]
"""Called in the event loop; must be quick. What it raises is logged and goes no further."""
