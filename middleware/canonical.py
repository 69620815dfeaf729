"""JSON in its one spelling, so that two ways to write the same value have one fingerprint.

Member order, white space and the spelling of strings don't count; numbers are kept digit by digit, since a decoder would
make one of 1.0 and 1, or of two 19-digit integers.
"""

import json
from json.encoder import encode_basestring_ascii

MAX_DEPTH = 64
"""Deeper JSON has no canonical form. A fixed number: Python's own recursion limit would depend on who called."""


class NotCanonical(ValueError):
    """The body has no canonical form: not JSON, a repeated member name, or nested too deep."""


def canonical_json(body: bytes) -> bytes:
    """The one spelling of a JSON value. Raises `NotCanonical` where it has none."""
    try:
        value = json.loads(
            body.decode(),
            parse_int=_Digits,
            parse_float=_Digits,
            parse_constant=_no_constant,
            object_pairs_hook=_no_repeats,
        )
        return _spell(value, MAX_DEPTH).encode("ascii")
    except (ValueError, RecursionError) as error:
        raise NotCanonical("no canonical form") from error


class _Digits(str):
    """A number, as it was spelled."""

    __slots__ = ()


def _no_constant(name: str) -> object:
    raise NotCanonical(f"{name} is not JSON")


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotCanonical("a member name is repeated")
    return members


def _spell(value: object, depth: int) -> str:
    if depth < 0:
        raise NotCanonical("nested too deep")
    if isinstance(value, _Digits):
        return str(value)
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        members = [f"{encode_basestring_ascii(name)}:{_spell(value[name], depth - 1)}" for name in sorted(value)]
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_spell(item, depth - 1) for item in value]) + "]"
    return {True: "true", False: "false", None: "null"}[value]  # type: ignore[index]  # nothing else comes out of JSON
