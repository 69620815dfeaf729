"""Sessions of the console: signed, so that any process of a gateway takes them, and ended in memory that all of them share.

Strategy. A session is in its cookie: an id, when it ends, and a digest that says whose token began it; an HMAC (RFC 2104) over
that. The token is not in it. Whose it is, and what he may do, is looked up with each request among the tokens in effect: one
that is gone has no sessions. A log-out is noted where each process of the gateway sees it.
"""

import hashlib
import hmac
import mmap
import os
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time
from typing import Final

from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.middleware.rules.keys.digests import Secrets

SECONDS: Final = 8 * 3600
"""The longest that a session lasts; nothing prolongs it."""
MOST_ENDED: Final = 1024
"""Log-outs that each process notes; one more, and the first is forgotten."""
_ID_BYTES: Final = 16
_WHOSE_BYTES: Final = 16
_BODY: Final = struct.Struct(f">{_ID_BYTES}sQ{_WHOSE_BYTES}s")
_NOBODY: Final = bytes(_WHOSE_BYTES)
_PURPOSE: Final = b"oncegate"


class EndedSessions:
    """The sessions that were logged out, in memory that ``workers`` share; and a random ``key`` of theirs.

    To be made before they are forked; each then calls `enter`.
    """

    def __init__(self, workers: int = 1) -> None:
        self.key = os.urandom(32)
        self._all = mmap.mmap(-1, workers * MOST_ENDED * _ID_BYTES)
        self.enter(0)

    def enter(self, index: int) -> None:
        """This process is worker ``index`` from now on. What its predecessor has noted stays."""
        self._first = index * MOST_ENDED
        noted = [self._at(number) != bytes(_ID_BYTES) for number in range(MOST_ENDED)]
        self._next = 0 if all(noted) else noted.index(False)

    def add(self, identifier: bytes) -> None:
        """Note that a session was ended."""
        begin = (self._first + self._next) * _ID_BYTES
        self._all[begin : begin + _ID_BYTES] = identifier
        self._next = (self._next + 1) % MOST_ENDED

    def __contains__(self, identifier: bytes) -> bool:
        return self._all.find(identifier, 0) >= 0

    def _at(self, number: int) -> bytes:
        begin = (self._first + number) * _ID_BYTES
        return self._all[begin : begin + _ID_BYTES]


@dataclass(frozen=True, slots=True)
class Session:
    """One browser's session. ``token`` is ``None`` until somebody has logged in; ``form`` is what its forms have to bring."""

    identifier: bytes
    ends: int
    token: AdminToken | None
    form: str


class Sessions:
    """The sessions that ``tokens`` may begin. The first of ``keys`` signs, all are taken; ``now`` is in seconds (Unix time)."""

    def __init__(
        self,
        ended: EndedSessions,
        keys: Sequence[bytes],
        tokens: Sequence[AdminToken],
        now: Callable[[], float] = time,
    ) -> None:
        self._ended = ended
        self._keys = tuple(keys) or (ended.key,)
        self._tokens = tuple(tokens)
        self._now = now

    def begin(self, token: AdminToken | None = None) -> str:
        """A new session as its cookie has it: of a token, or of nobody yet."""
        key = self._keys[0]
        whose = _NOBODY if token is None else _whose(key, token)
        body = _BODY.pack(os.urandom(_ID_BYTES), int(self._now()) + SECONDS, whose)
        return urlsafe_b64encode(body + _mac(key, b"session", body)).decode()

    def of(self, cookie: str) -> Session | None:
        """The session of a cookie. ``None``: it is none of ours, over, logged out, or its token is no longer there."""
        try:
            given = urlsafe_b64decode(cookie)
        except ValueError:
            return None
        body, signed = given[: _BODY.size], given[_BODY.size :]
        if len(body) != _BODY.size:
            return None
        for key in self._keys:
            if hmac.compare_digest(_mac(key, b"session", body), signed):
                return self._read(key, *_BODY.unpack(body))
        return None

    def end(self, session: Session) -> None:
        """Log a session out."""
        self._ended.add(session.identifier)

    def sign(self, session: Session, text: str) -> str:
        """The signature of ``text``, which shows that it was written here, for this session."""
        return _mac(self._keys[0], b"text", session.identifier + text.encode()).hex()[:32]

    def _read(self, key: bytes, identifier: bytes, ends: int, whose: bytes) -> Session | None:
        if self._now() >= ends or identifier in self._ended:
            return None
        owners = [token for token in self._tokens if hmac.compare_digest(_whose(key, token), whose)]
        if whose != _NOBODY and not owners:
            return None
        form = _mac(key, b"form", identifier).hex()
        return Session(identifier, ends, owners[0] if owners else None, form)


def session_keys(secrets: Secrets) -> list[bytes]:
    """The keys by the deployment's secret, so that all its gateways take each other's sessions. Without one: none."""
    given = [secrets] if secrets is None or isinstance(secrets, str | bytes) else secrets
    octets = [each.encode("utf-8", "surrogateescape") if isinstance(each, str) else each for each in given]
    return [hashlib.blake2b(each, digest_size=32, person=_PURPOSE, salt=b"console").digest() for each in octets if each]


def _whose(key: bytes, token: AdminToken) -> bytes:
    return _mac(key, b"token", token.digest + token.name.encode())[:_WHOSE_BYTES]


def _mac(key: bytes, purpose: bytes, octets: bytes) -> bytes:
    return hmac.digest(key, purpose + b"\0" + octets, "sha256")
