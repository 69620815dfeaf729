"""What makes two requests under one key the same: method, path, query and body (draft section 2.4), as 16 bytes.

The parts are length-prefixed, so that nothing can move from one into the next. Bodies are compared byte by byte, or as
JSON values (`oncegate.middleware.canonical`).
"""

from hashlib import blake2b
from typing import Final

from oncegate.cache.record import FINGERPRINT_BYTES
from oncegate.middleware.canonical import NotCanonical, canonical_json

_BLANK: Final = blake2b(digest_size=FINGERPRINT_BYTES)
"""To be copied, which takes less than to make one."""


def fingerprint(method: str, path: bytes, query: bytes, body: bytes, *, as_json: bool = False) -> bytes:
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
    digest = _BLANK.copy()
    digest.update(b"%d:%d:%d:%b:%b%b%b" % (len(name), len(path), len(query), kind, name, path, query))
    digest.update(body)
    return digest.digest()
