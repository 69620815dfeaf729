"""Which requests have a line in the access log: the setting ``access_log_only``."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from oncegate.middleware.admission.gate import GateDecision
from oncegate.middleware.outcome.problem_kinds import KINDS

AccessLogFormat = Literal["json", "combined", "none"]

PASS: Final = "pass"  # noqa: S105 - the decision on a request that is not under enforcement
OPERATIONS: Final = "operations"
MALFORMED: Final = "malformed"
DECISIONS: Final = (PASS, OPERATIONS, MALFORMED, *dict.fromkeys([*(each.value for each in GateDecision), *KINDS]))
"""The decisions that a line may have: those of requests under enforcement, and what becomes of the others."""

_STATUS: Final = re.compile(r"[1-5]([0-9][0-9]|xx)")
_DURATION: Final = re.compile(r">([0-9]+(?:\.[0-9]+)?)(ms|s)")
_MEANT: Final = (
    'decisions (replayed, pass), statuses (409, 5xx) and durations (">500ms", ">2s"), with ! in front or without'
)


class _Any:
    """Holds of a request where one of its parts does."""

    def __init__(self, parts: Iterable[str]) -> None:
        self._words: set[str] = set()
        self._slower_than = float("inf")
        for part in parts:
            duration = _DURATION.fullmatch(part)
            if duration is not None:
                seconds = float(duration[1]) / (1000 if duration[2] == "ms" else 1)
                self._slower_than = min(self._slower_than, seconds)
            elif part in DECISIONS or _STATUS.fullmatch(part) is not None:
                self._words.add(part)
            else:
                raise ValueError(f"has {part!r}: there are {_MEANT}")

    def holds(self, decision: str, status: str, seconds: float) -> bool:
        return (
            seconds > self._slower_than
            or decision in self._words
            or status in self._words
            or f"{status[:1]}xx" in self._words
        )


class Selection:
    """Which requests have a line: those for which one of ``wanted`` holds (all, where there is none), and none ``unwanted``."""

    def __init__(self, wanted: Sequence[str], unwanted: Sequence[str]) -> None:
        self._takes_all = not wanted
        self._wanted = _Any(wanted)
        self._unwanted = _Any(unwanted)

    @classmethod
    def of(cls, parts: Sequence[str]) -> "Selection":
        """The one that the setting says. Raises ``ValueError`` for a part that is none."""
        return cls(
            [part for part in parts if not part.startswith("!")], [part[1:] for part in parts if part.startswith("!")]
        )

    def takes(self, decision: str, status: int, seconds: float) -> bool:
        """Whether a request has a line; ``decision`` is empty where none was made."""
        text = str(status)
        if self._unwanted.holds(decision, text, seconds):
            return False
        return self._takes_all or self._wanted.holds(decision, text, seconds)
