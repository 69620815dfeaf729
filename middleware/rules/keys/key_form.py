"""The form that a route wants keys to have: one of a few that have names, or a regular expression for the whole key.

Expressions are matched by the engine that pydantic brings, Rust's ``regex``: in time that grows with the key and never explodes,
since it has neither look-around nor references back. What its time does grow with is the expression, with every count in it
written out: that is bounded here.
"""

import re
from functools import lru_cache
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from oncegate.middleware.rules.errors import KeyInvalid

_HEX: Final = "[0-9A-Fa-f]"
NAMED: Final = {
    "uuid": (f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}", "a UUID"),
    "uuid7": (
        f"{_HEX}{{8}}-{_HEX}{{4}}-7{_HEX}{{3}}-[89ABab]{_HEX}{{3}}-{_HEX}{{12}}",
        "a UUID of version 7 (RFC 9562)",
    ),
    "ulid": ("[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}", "a ULID"),
}
"""The forms that have names, as expressions and in words."""
A_GENERATED_KEY: Final = "8f14e45f-ceea-467f-a2d2-9c3d1b2a7e60"
"""As ``on_missing_key = "generate"`` makes them."""
MOST_STEPS: Final = 400
"""The size of an expression with its counts written out: a key of 255 characters takes at most some 2 ms then."""
_TOO_LARGE: Final = f"is too large: with its counts written out it has more than {MOST_STEPS} steps"
_TOKEN: Final = re.compile(
    r"\\[pPxuU]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|\[:[^\]]*:\]|[^\]\\])*\]|\{(?P<least>\d+)(?P<more>,(?P<most>\d*))?\}|.",
    re.DOTALL,
)


class KeyForm:
    """The form of a setting: its ``words`` are for callers."""

    __slots__ = ("_validator", "words")

    def __init__(self, pattern: str) -> None:
        expression, words = NAMED.get(pattern, (pattern, f"what matches {pattern}"))
        self.words = words
        if _steps(expression) > MOST_STEPS:
            raise ValueError(_TOO_LARGE)
        try:
            _compiled(expression)  # by itself: what follows could close a bracket that it has not opened
            self._validator = _compiled(f"^(?:{expression})$")
        except SchemaError as error:
            if "size limit" in str(error):  # classes such as \\w stand for many characters
                raise ValueError(_TOO_LARGE) from None
            raise ValueError(
                f"is no regular expression in Rust's syntax ({_reason(error)}), nor one of {', '.join(NAMED)}"
            ) from None

    @staticmethod
    @lru_cache(maxsize=256)
    def of(pattern: str) -> "KeyForm | None":
        """The form that the setting names, ``None`` for an empty one. Raises ``ValueError`` for what is none."""
        return KeyForm(pattern) if pattern else None

    def matches(self, key: str) -> bool:
        """Whether ``key`` has this form."""
        return self._validator.isinstance_python(key)

    def check(self, key: str) -> None:
        """Raises `KeyInvalid` unless ``key`` has this form."""
        if not self.matches(key):
            raise KeyInvalid(f"The key doesn't have the form that this operation takes: send {self.words}.")


def _compiled(expression: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=expression, regex_engine="rust-regex", strict=True))


def _reason(error: SchemaError) -> str:
    """The engine's last line, which says what is wrong without the expression."""
    return str(error).strip().splitlines()[-1].removeprefix("error: ").strip()


def _steps(expression: str) -> int:
    """How many steps an expression has with its counts written out; at least, for one that is well-formed."""
    whole, outer, last = 0, [], 0
    for token in _TOKEN.finditer(expression):
        text = token[0]
        if text == "(":
            outer.append(whole)
            whole = last = 0
        elif text == ")" and outer:
            whole, last = outer.pop() + whole, whole
        elif token["least"] is not None:
            times = int(token["most"] or token["least"]) if token["more"] else int(token["least"])
            whole, last = whole + last * max(times - 1, 0), last * max(times, 1)
        else:
            whole, last = whole + 1, 1
    return whole
