"""Times, ages and numbers in words, as filters of the templates."""

import json
from collections.abc import Callable
from typing import Any, Final

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def seconds(value: float | None) -> str:
    """A length of time, with its largest two units: ``2 h 5 min``."""
    if value is None:
        return "not known"
    if abs(value) < 1:
        return f"{value * 1000:.0f} ms"
    sign, left = ("-" if value < 0 else ""), round(abs(value))
    parts = []
    for size, unit in _UNITS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return sign + " ".join(parts[:2])


def instant(value: str | None) -> str:
    """A time as records have it, shorter: ``2026-11-26 01:39:53 UTC``."""
    if not value:
        return "not known"
    return value.replace("T", " ").removesuffix("Z").partition(".")[0] + " UTC"


def number(value: float) -> str:
    """A count, in groups of three digits."""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes, in the unit that fits: ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def as_json(value: Any) -> str:
    """A setting's value as JSON."""
    return json.dumps(value, ensure_ascii=False)


FILTERS: Final[dict[str, Callable[[Any], str]]] = {
    "seconds": seconds,
    "instant": instant,
    "number": number,
    "size": size,
    "as_json": as_json,
}
