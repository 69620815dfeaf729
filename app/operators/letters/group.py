"""A group of dead letters with one error, and the form of its name; without what reads them, which loads redis-py's client."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from oncegate.middleware.outcome.instants import instant

GROUP: Final = re.compile(r"[0-9a-f]{12}")
"""The name of one."""


@lru_cache(maxsize=128)
def group_id(reason: str, error_type: str, error: str) -> str:
    """The name of the group of what its letters have in common."""
    common = "\0".join((reason, error_type, error))
    return sha256(common.encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(slots=True)
class LetterGroup:
    """Dead letters with one ``reason``, type of error and ``error``, in which numbers and ids are ``#``."""

    reason: str
    error_type: str
    error: str
    count: int = 0
    newest_ms: int = 0
    oldest_ms: int = 0
    example: str = ""
    routes: set[str] = field(default_factory=set)

    @property
    def id(self) -> str:
        """Its name, of 12 hexadecimal digits."""
        return group_id(self.reason, self.error_type, self.error)

    def as_json(self) -> dict[str, Any]:
        """Its description."""
        return {
            "group": self.id,
            "reason": self.reason,
            "error_type": self.error_type or None,
            "error": self.error or None,
            "count": self.count,
            "newest_at": instant(self.newest_ms),
            "oldest_at": instant(self.oldest_ms),
            "example": self.example,
            "routes": sorted(self.routes),
        }
