"""Canonical JSON, so that two spellings of the same value have one fingerprint.

Member order, white space and the spelling of strings don't count. Numbers are kept digit by digit: a decoder would make one of
1.0 and 1, or of two 19-digit integers. It is done on the event loop, where lists and objects within each other take longest, some
500 ns each: `oncegate.middleware.rules.policy.MOST_JSON` bounds that.
"""

import json
from collections.abc import Callable
from json.encoder import encode_basestring_ascii

MAX_DEPTH = 64
"""Deeper JSON has no canonical form. A fixed number: Python's own recursion limit would depend on who called."""

_CONSTANTS = {None: b"null", True: b"true", False: b"false"}


class NotCanonical(ValueError):
    """The body has no canonical form: not JSON, a repeated member name, or nested too deep."""


def canonical_json(body: bytes) -> bytes:
    """The one spelling of a JSON value. Raises `NotCanonical` where it has none."""
    pieces: list[bytes] = []
    try:
        _spell(_DECODER.decode(body.decode()), MAX_DEPTH, pieces.append)
    except (ValueError, RecursionError) as error:
        raise NotCanonical("no canonical form") from error
    return b"".join(pieces)


def _no_constant(name: str) -> object:
    raise NotCanonical(f"{name} is not JSON")


# What is made of each value is what takes least: numbers become bytes as they are spelled, objects tuples of name and value.
_DECODER = json.JSONDecoder(
    parse_int=str.encode, parse_float=str.encode, parse_constant=_no_constant, object_pairs_hook=tuple
)


def _spell(value: object, depth: int, add: Callable[[bytes], None]) -> None:
    """Adds the pieces of ``value``, to be joined once: joined at each level, they would be copied at each."""
    if depth < 0:
        raise NotCanonical("nested too deep")
    if isinstance(value, bytes):
        add(value)
    elif isinstance(value, str):
        add(encode_basestring_ascii(value).encode("ascii"))
    elif isinstance(value, list):
        _spell_list(value, depth - 1, add)
    elif isinstance(value, tuple):
        _spell_object(value, depth - 1, add)
    else:
        add(_CONSTANTS[value])  # type: ignore[index]  # nothing else comes out of JSON


def _spell_list(items: list[object], depth: int, add: Callable[[bytes], None]) -> None:
    between = b"["
    for item in items:
        add(between)
        between = b","
        _spell(item, depth, add)
    add(b"]" if items else b"[]")


def _spell_object(pairs: tuple[tuple[str, object], ...], depth: int, add: Callable[[bytes], None]) -> None:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotCanonical("a member name is repeated")
    between = b"{"
    for name in sorted(members):
        add(between)
        between = b","
        add(encode_basestring_ascii(name).encode("ascii"))
        add(b":")
        _spell(members[name], depth, add)
    add(b"}" if members else b"{}")
