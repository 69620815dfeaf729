"""Idempotency keys: the header's grammar, the caller's scope, the look-up key made of both; and the fingerprint.

The grammar is draft-ietf-httpapi-idempotency-key-header-07 section 2.1 (an RFC 9651 String), widened by the bare token
that most clients send. ``"abc"`` and ``abc`` name the same key.

The fingerprint is 16 bytes of method, path, query and body (draft section 2.4), by which a key's requests are compared.
Its parts are length-prefixed, so that nothing can move from one into the next.

Under ``on_mismatch = "warn"`` another query or body is forgiven, another method or path is not. So a fingerprint that is made
under it begins with 10 bytes of these two alone: to get another operation's answer takes a second preimage of 80 bits. The 6
bytes behind them tell payloads apart: who makes two alike gets what that policy gives anyway. Under any other policy it begins
with a digest of everything, which no route that warns takes for one of its own operation.
"""
# Compiled: docs/decisions/0012-compiled.md

import re
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from oncegate.middleware.rules.errors import KeyInvalid
from oncegate.middleware.rules.keys.canonical_json import NotCanonical, canonical_json
from oncegate.middleware.rules.keys.digests import OPERATION_BYTES, UNKEYED, Digests

MAX_KEY_CHARACTERS: Final = 255
_MAX_FIELD_BYTES: Final = 4096
"""The most bytes of a key's field value: room for every character escaped, and for parameters, which nobody is known to send."""
_STRING: Final = rb'"(?:[ !#-\[\]-~]|\\["\\])*"'
_PARAMETER: Final = (
    rb" *; *[a-z*][a-z0-9_.*-]*"
    rb"(?:=(?:" + _STRING + rb"|-?[0-9]{1,15}(?:\.[0-9]{1,3})?|[A-Za-z*][!#$%&'*+.^_`|~:/0-9A-Za-z-]*"
    rb'|:[A-Za-z0-9+/=]*:|\?[01]|@-?[0-9]{1,15}|%"[ !#-~]*"))?'
)
_QUOTED_KEY: Final = re.compile(rb"(" + _STRING + rb")(?:" + _PARAMETER + rb")*")
_OTHER: Final = 0
_BARE_KEPT: Final = bytes(octet if 0x21 <= octet <= 0x7E and octet not in b'",\\' else _OTHER for octet in range(256))
"""Translates the octets of a bare key into themselves, any other one into `_OTHER`: a fifth of what an expression takes."""
_is_plain: Final = re.compile(rb'"[ !#-\[\]-~]{1,255}"').fullmatch
"""A quoted key without an escape or a parameter."""
_ESCAPED: Final = re.compile(r"\\(.)")
_METHODS: Final = {method: (b"%d:" % len(method), method.encode()) for method in ("POST", "PUT", "PATCH", "DELETE")}
"""The usual ones with their lengths, which are not encoded anew for each request."""
_SPACE: Final = 0x20
_BASE64_TO_ID: Final = bytes.maketrans(b"+/", b"._")
"""An id begins with no ``-`` that a command line would take for an option, and holds no ``/``."""
_LENGTHS: Final = [b"%d:" % length for length in range(256)]
"""How parts are prefixed that are not longer, as nearly all are."""

_COPIED: Final = 4096
"""Bytes of a body that are copied rather than digested by a call of their own."""

RECORD_ID: Final = re.compile(r"[A-Za-z0-9._]{20}:[A-Za-z0-9._]{20}")
"""The form of `record_id`: two digests of 15 bytes, in base64 but for two characters."""

KeyText = str | bytes | int | UUID
"""A key as it may be given: text; bytes are taken as UTF-8, and an integer or a UUID by its spelling."""

Fields = dict[bytes, list[bytes]]
"""The field lines of interest of one request: lower-case name to values, in their order."""


def pick(headers: Iterable[Sequence[Any]], wanted: frozenset[bytes]) -> Fields:
    """The field lines of ``headers`` whose lower-case names are ``wanted``, without the white space around their values, which
    some servers leave there (RFC 9110 section 5.5). A line may be a tuple or a list.
    """
    fields: Fields = {}
    for line in headers:
        name = line[0]
        if name in wanted:
            given = line[1]
            value: bytes = given if isinstance(given, bytes) else bytes(given)
            if value and (value[0] <= _SPACE or value[-1] <= _SPACE):
                value = value.strip(b" \t")
            if name in fields:
                fields[name].append(value)
            else:
                fields[name] = [value]
    return fields


def parse_key(value: bytes) -> str:
    """The key that one field line names, 1 to 255 characters. Raises `KeyInvalid`, which never quotes the value."""
    if value and len(value) <= MAX_KEY_CHARACTERS and _OTHER not in value.translate(_BARE_KEPT):  # as most send it
        return value.decode("ascii")
    if _is_plain(value):  # as the rest do
        return value[1:-1].decode("ascii")
    value = value.strip(b" \t")
    if len(value) > _MAX_FIELD_BYTES:
        raise KeyInvalid(f"The key's field has {len(value)} characters: send a key of 1 to {MAX_KEY_CHARACTERS}.")
    if is_bare(value):
        return value.decode("ascii")
    if not value:
        raise KeyInvalid("The key is empty: send 1 to 255 characters.")
    quoted = _QUOTED_KEY.fullmatch(value)
    if quoted is None:
        raise KeyInvalid(_what_is_wrong(value))
    key = _ESCAPED.sub(r"\1", quoted[1][1:-1].decode("ascii"))
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise KeyInvalid(f"The key has {len(key)} characters: send 1 to {MAX_KEY_CHARACTERS}.")
    return key


def is_bare(value: bytes) -> bool:
    """Whether ``value`` may be a key without quotes: 1 to 255 visible characters of ASCII but ``"``, ``\\`` and comma."""
    return 1 <= len(value) <= MAX_KEY_CHARACTERS and _OTHER not in value.translate(_BARE_KEPT)


def _what_is_wrong(value: bytes) -> str:
    if not value.startswith(b'"'):
        if len(value) > MAX_KEY_CHARACTERS:
            return f"The key has {len(value)} characters: send 1 to {MAX_KEY_CHARACTERS}."
        return 'A bare key is visible ASCII without ", \\ and comma: put any other key in double quotes.'
    if not value.isascii() or any(octet < 0x20 or octet == 0x7F for octet in value):
        return "A quoted key is printable ASCII: a character in it is not."
    return 'The quoted key is not an RFC 9651 String: close it with ", and escape only " and \\ in it.'


def read_key(fields: Fields, names: Sequence[bytes]) -> tuple[str, bytes] | None:
    """The key of a request, and the field value that it came in; ``None`` without one. ``names`` are the header and its aliases.

    Raises `KeyInvalid` for more than one field line of a name, and where two of them name different keys.
    """
    first: tuple[str, bytes] | None = None
    for name in names:
        lines = fields.get(name)
        if lines is None:
            continue
        if len(lines) > 1:
            raise KeyInvalid(f"There is more than one {name.decode()} field line: send one.")
        key = parse_key(lines[0])
        if first is None:
            first = key, lines[0]
        elif first[0] != key:
            raise KeyInvalid(f"{name.decode()} names another key than a header before it: send one key.")
    return first


def scope_parts(fields: Fields, names: Sequence[bytes]) -> list[bytes] | None:
    """The caller's identity: the scope's headers with all their values, or ``None`` without any of them.

    A verified token's claims are among ``fields`` under names of their own: see `claim_name`.
    """
    only = fields.get(names[0]) if len(names) == 1 else None
    if only is not None and len(only) == 1:  # as a rule
        return [names[0], b"1", only[0]]
    parts: list[bytes] = []
    found = False
    for name in names:
        values = fields.get(name, [])
        found = found or bool(values)
        parts += (name, b"%d" % len(values), *values)
    return parts if found else None


def claim_name(claim: str) -> bytes:
    """A claim of a token as a name in a scope: with a colon, which no header's has, so that neither is taken for the other."""
    return b"jwt:" + claim.encode()


def record_key(namespace: str, key: str, scope: Sequence[bytes] | None, digests: Digests = UNKEYED) -> str:
    """The look-up key of a record: ``namespace``, which holds no colon, then what `record_digests` gives."""
    return f"{namespace}:{record_digests(key, scope, digests)}"


class LastCaller:
    """The ``scope`` of who sends one request after the other with heads of the same names, and what was made of it.

    What keeps it drops it with the head that the scope was read from: a credential is kept no longer than that.
    """

    __slots__ = ("_digest", "_digests", "_names", "_wanted", "scope")

    def __init__(self) -> None:
        self.scope: Sequence[bytes] = ()
        self._wanted: frozenset[bytes] | None = None
        self._names: list[bytes] = []
        self._digests: Digests | None = None
        self._digest = b""

    def names(self, named: dict[bytes, bytes], wanted: frozenset[bytes]) -> list[bytes]:
        """Those of the names ``wanted`` that the heads have, as this one does, which is ``named``."""
        if wanted is not self._wanted:
            self._wanted, self._names = wanted, [name for name in wanted if name in named]
        return self._names

    def digest(self, scope: Sequence[bytes], digests: Digests) -> bytes:
        """The digest of ``scope``: the last one's, if it is the same."""
        if digests is not self._digests or scope != self.scope:
            self.scope, self._digests, self._digest = scope, digests, _digest_of(scope, digests)
        return self._digest


def _digest_of(scope: Sequence[bytes], digests: Digests) -> bytes:
    scoped = digests.name.copy()
    if len(scope) == 3:  # one header with one value, as a rule
        header, count, value = scope
        scoped.update(b"%d:%b%d:%b%d:%b" % (len(header), header, len(count), count, len(value), value))
    else:
        for part in scope:
            scoped.update(b"%d:%b" % (len(part), part))
    return scoped.digest()


def record_digests(key: str, scope: Sequence[bytes] | None, digests: Digests, last: LastCaller | None = None) -> str:
    """``digest(key):digest(scope)``, the record's id. The parts are length-prefixed: no crafted one reaches another's record.

    ``last`` is perhaps the same caller.
    """
    name = key.encode()
    size = len(name)
    keyed = digests.name.copy()
    keyed.update((_LENGTHS[size] if size < 256 else b"%d:" % size) + name)
    behind = digests.unscoped
    if scope:
        behind = _digest_of(scope, digests) if last is None else last.digest(scope, digests)
    # Both at once: each makes 20 characters, without padding. A line feed comes behind them.
    spelled = b2a_base64(keyed.digest() + behind).translate(_BASE64_TO_ID).decode("ascii")
    return f"{spelled[:20]}:{spelled[20:40]}"


def key_digest(key: str, digests: Digests = UNKEYED) -> str:
    """The part of a look-up key that comes from the idempotency key, 20 characters."""
    return record_digests(key, None, digests)[:20]


def scope_digest(scope: Sequence[bytes] | None, digests: Digests = UNKEYED) -> str:
    """The last part of a look-up key: who the caller is, 20 characters."""
    return record_digests("", scope, digests)[-20:]


def scope_digests(scope: Sequence[bytes] | None, digests: Digests) -> list[str]:
    """`scope_digest` by each secret in use."""
    return [scope_digest(scope, each) for each in (digests, digests.former) if each is not None]


def record_id(look_up_key: str) -> str:
    """The record's name in problems and logs: its look-up key without the namespace, 41 characters.

    Of an execution record the consumer's name comes after it: ``k:s:consumer``.
    """
    found = look_up_key.partition(":")[2]
    return found.replace("}", "", 1) if "}" in found else found


def key_of_id(namespace: str, identifier: str) -> str:
    """The look-up key of the record that has this id, which is no execution record's."""
    return f"{namespace}:{identifier}"


def caller_of_id(identifier: str) -> str:
    """Who the caller of the record with this id is: see `scope_digest`."""
    return identifier.partition(":")[2]


def execution_key(look_up_key: str, consumer: str) -> str:
    """The look-up key of ``consumer``'s execution record of a command, in the same slot of a cluster as the command's own.

    No idempotency key reaches it: those look-up keys begin with their namespace.
    """
    return f"{{{look_up_key}}}:{consumer}"


def check_key(key: str) -> str:
    """A key that came by another way than a header, as it is. Raises `KeyInvalid` unless it has 1 to 255 characters."""
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise KeyInvalid(f"The key has {len(key)} characters: give 1 to {MAX_KEY_CHARACTERS}.")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise KeyInvalid("The key holds half of a surrogate pair, which is no character.") from None
    return key


def key_text(value: object, what: str) -> str:
    """``value`` as text. Raises `KeyInvalid`, which says ``what`` is wrong, without the value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise KeyInvalid(f"The {what} is given as bytes that are no UTF-8.") from None
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # Python spells no integer of thousands of digits
            raise KeyInvalid(f"The {what} is too long.") from None
    raise KeyInvalid(f"The {what} is of type {type(value).__name__}: give text.")


def caller_scope(caller: str | None) -> list[bytes] | None:
    """The scope of a caller who has a name and no headers; ``None`` for the nameless one (no name, or an empty one)."""
    return [b"caller", caller.encode("utf-8", "surrogatepass")] if caller else None


def key_line(key: str) -> str:
    """The key as a header's value: as the bare token that most services expect, else as an RFC 9651 String."""
    if is_bare(key.encode()):
        return key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def fingerprint(
    method: str, path: bytes, query: bytes, body: bytes, *, as_json: bool = False, digests: Digests = UNKEYED
) -> bytes:
    """The fingerprint of a request. ``path`` is as sent, still percent-encoded.

    With ``as_json``, a body that isn't JSON, repeats a member name or nests too deep is taken raw.
    """
    kind = b"raw"
    if as_json:
        try:
            body = canonical_json(body)
            kind = b"json"
        except NotCanonical:
            pass
    known = _METHODS.get(method)
    if known is not None and len(path) < 256 and len(query) < 256:  # as a rule; a number takes long to spell
        sizes = known[0] + _LENGTHS[len(path)] + _LENGTHS[len(query)]
        name = known[1]
    else:
        name = method.encode("latin-1")
        sizes = b"%d:%d:%d:" % (len(name), len(path), len(query))
    before = b"%b%b:%b%b%b" % (sizes, kind, name, path, query)
    digest = digests.payload.copy()
    if len(body) <= _COPIED:
        digest.update(before + body)
    else:
        digest.update(before)
        digest.update(body)
    return digest.digest()


def forgiving(method: str, path: bytes, whole: bytes, digests: Digests = UNKEYED) -> bytes:
    """The fingerprint under ``on_mismatch = "warn"`` of a request whose fingerprint under any other policy is ``whole``."""
    name = method.encode("latin-1")
    digest = digests.operation.copy()
    digest.update(b"%d:%b%b" % (len(name), name, path))
    return digest.digest() + whole[OPERATION_BYTES:]


def same_operation(one: bytes, other: bytes) -> bool:
    """Whether two fingerprints that `forgiving` made are of the same method and path. False for any that it did not make."""
    return one[:OPERATION_BYTES] == other[:OPERATION_BYTES]
