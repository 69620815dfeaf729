"""What makes two requests under one key the same: method, path, query and body (draft section 2.4), as 16 bytes.

The parts are length-prefixed, so that nothing can move from one into the next. Bodies are compared byte by byte, or as
JSON values: then member order, white space and the spelling of strings don't count, while numbers are compared digit by
digit (a decoder would make one of 1.0 and 1, or of two 19-digit integers).
"""

import json
from hashlib import blake2b
from json.encoder import encode_basestring_ascii

from oncegate.cache.record import FINGERPRINT_BYTES

MAX_DEPTH = 64
"""Deeper JSON is taken raw. A fixed number: Python's own recursion limit would depend on who called."""


_BLANK = blake2b(digest_size=FINGERPRINT_BYTES)
"""To be copied, which takes less than to make one."""


class _NotCanonical(ValueError):
    """The body has no canonical form: not JSON, a repeated member name, or nested too deep."""


def fingerprint(method: str, path: bytes, query: bytes, body: bytes, *, as_json: bool = False) -> bytes:
    """The fingerprint of a request. ``path`` is as sent, still percent-encoded.

    With ``as_json``, a body that isn't JSON, repeats a member name or nests too deep is taken raw.
    """
    kind = "raw"
    if as_json:
        try:
            body = canonical_json(body)
            kind = "json"
        except _NotCanonical:
            pass
    lengths = f"{len(method)}:{len(path)}:{len(query)}:{kind}:{method}".encode("latin-1")
    digest = _BLANK.copy()
    digest.update(lengths + path + query)
    digest.update(body)
    return digest.digest()


def canonical_json(body: bytes) -> bytes:
    """The one spelling of a JSON value. Raises ``ValueError`` where it has none."""
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
        raise _NotCanonical("no canonical form") from error


class _Digits(str):
    """A number, as it was spelled."""

    __slots__ = ()


def _no_constant(name: str) -> object:
    raise _NotCanonical(f"{name} is not JSON")


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NotCanonical("a member name is repeated")
    return members


def _spell(value: object, depth: int) -> str:
    if depth < 0:
        raise _NotCanonical("nested too deep")
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
