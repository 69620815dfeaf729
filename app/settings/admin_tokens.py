"""Operators' tokens as settings have them: ``NAME:read:DIGEST`` or ``NAME:write:DIGEST``, and never the token itself.

A token is 32 random bytes, so that a digest of it without salt or stretching gives nothing away.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class AdminToken:
    """Whose a token is (nobody's in particular: empty), whether it also allows changes, and its SHA-256."""

    name: str
    writes: bool
    digest: bytes

    @classmethod
    def of(cls, name: str, token: str, *, writes: bool = True) -> "AdminToken":
        """The admin token of a token itself. Surrogates stand for bytes that are no UTF-8, as the environment has them."""
        return cls(name, writes, digest(token.encode("utf-8", "surrogateescape")))

    def setting(self) -> str:
        """The text that `parse` takes."""
        return f"{self.name}:{'write' if self.writes else 'read'}:{self.digest.hex()}"


def digest(token: bytes) -> bytes:
    """The SHA-256 of a token, which is all that is kept of it."""
    return hashlib.sha256(token).digest()


def new_token() -> str:
    """A new one: 32 random bytes as text that a header can carry. The prefix tells scanners for secrets what it is."""
    return f"oncegate-{secrets.token_urlsafe(32)}"


def parse(setting: str) -> AdminToken:
    """A token by its setting. Raises ``ValueError``, without quoting it: somebody may have put the token itself there."""
    name, _, rest = setting.partition(":")
    access, _, hexadecimal = rest.partition(":")
    if not (NAME.fullmatch(name) and access in ("read", "write") and _DIGEST.fullmatch(hexadecimal)):
        raise ValueError('is NAME:read:DIGEST or NAME:write:DIGEST, as "oncegate token NAME" prints it')
    return AdminToken(name, access == "write", bytes.fromhex(hexadecimal))
