"""The fingerprint: 16 bytes of method, path, query and body (draft section 2.4), by which a key's requests are compared.

The parts are length-prefixed, so that nothing can move from one into the next. Bodies are compared byte by byte, or as
JSON values (`oncegate.middleware.rules.canonical_json`).

Under ``on_mismatch = "warn"`` another query or body is forgiven, another method or path is not. So the fingerprints that are
made under it begin with a digest of these two alone. They have 10 of the 16 bytes, since they keep one operation's answers
from another's callers: who would be taken for another operation has to find a path for a given digest of 80 bits, a second
preimage, to which pairs of its own making are no help. The 6 bytes behind them tell payloads apart: who makes two with the
same ones gets, once more, what that policy gives it anyway. Policies that warn of nothing keep the form in which records were
ever stored; it begins with a digest of everything, so no route that warns takes such a record for one of its own operation.
"""
# Compiled: docs/decisions/0012-compiled.md

from oncegate.middleware.rules.canonical_json import NotCanonical, canonical_json
from oncegate.middleware.rules.digests import OPERATION_BYTES, UNKEYED, Digests


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
    name = method.encode("latin-1")
    digest = digests.payload.copy()
    digest.update(b"%d:%d:%d:%b:%b%b%b" % (len(name), len(path), len(query), kind, name, path, query))
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
