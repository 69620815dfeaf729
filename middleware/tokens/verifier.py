"""Verifies the token of a request, and gives what it claims of its caller, in place of headers.

A token is verified once (some 0.4 ms), and known by its digest until it expires. The algorithm is the key's, the key one of the
issuer's: of what a token claims about itself only the key's id is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from time import monotonic, time
from typing import Any, Final

from oncegate.middleware.rules.errors import CallerInvalid, CallerUnverifiable
from oncegate.middleware.rules.keys.key import Fields, claim_name
from oncegate.middleware.rules.settings import IdempotencySettings, Route, claims_of
from oncegate.middleware.tokens.key_set import Key, KeySet
from oncegate.middleware.tokens.key_source import KeySource
from oncegate.middleware.tokens.settings import JwtSettings

LEEWAY: Final = 10
"""Seconds by which the clocks of issuer and gateway may differ."""
MAX_TOKEN_BYTES: Final = 8192
MAX_VERIFIED: Final = 10_000
"""Tokens that are remembered."""
MAX_VERIFIED_BYTES: Final = 8_388_608
_ENTRY_BYTES: Final = 500
"""The size of an entry beside its claims' values."""
MAX_WAITERS: Final = 1000
"""Requests of a process that wait for keys; more are refused at once."""

_BEARER: Final = b"bearer "
_INSTANTS = ("exp", "nbf", "iat")
_FARTHEST = 2.0**53
"""Seconds: later instants are no whole numbers of a float."""
_NOT_ONE: Final = "The header of the token is not one token: send Bearer and a JWT."
_MALFORMED: Final = "The token is no JWT."
_NO_KEY: Final = "The token is signed by a key that its issuer doesn't publish."
_NO_SIGNATURE: Final = "The token's signature doesn't hold."
_AWAY: Final = "The keys that tokens are verified with can't be had now. Nothing was executed."


@dataclass(frozen=True, slots=True)
class _Verified:
    until: float
    """The end of the entry's time, by `time.time`."""
    fields: dict[bytes, list[bytes]]
    size: int


class Tokens:
    """The tokens that ``settings`` let count. ``claims`` are the names of all that any scope reads.

    Raises `oncegate.middleware.tokens.key_set.UnusableKeys` where there can't be any: see `KeySource`.
    """

    def __init__(self, settings: JwtSettings, claims: Sequence[str]) -> None:
        self.source = KeySource(settings)
        self._claims = claims
        self._header = settings.header.lower().encode()
        self._needs_scheme = self._header == b"authorization"
        self._allowed = frozenset(settings.algorithms)
        self._rules: dict[str, Any] = {
            "issuer": settings.issuer or None,
            "audience": list(settings.audience) or None,
            "leeway": LEEWAY,
            # `sub` of another type than a text is PyJWT's to refuse by default; here a number names a caller, too.
            "options": {"require": ["exp"], "verify_aud": bool(settings.audience), "verify_sub": False},
        }
        if settings.issuer:
            self._rules["options"]["require"].append("iss")
        self._verified: dict[bytes, _Verified] = {}
        self._size = 0
        self._verified_by: KeySet | None = None
        self._waiters = 0

    def add_claims(self, fields: Fields, names: Sequence[bytes], *, waited: bool | None = None) -> bool:
        """Add to the headers in ``fields`` what their token claims, as if it were headers of these ``names``.

        Without a token nothing is added. False: its key is being looked for, so await `refreshed` and come again, with what that
        returned as ``waited``: then the answer is final. Raises `CallerInvalid`, `CallerUnverifiable`.
        """
        lines = fields.get(self._header)
        if lines is None:
            return True
        if monotonic() >= self.source.stale_at:
            self.source.refresh()  # in the background: those that are there count until then
        token = self._token(lines)
        found = self._known(token) or self._verify(token, waited)
        if found is None:
            return False
        for name in names:
            values = found.fields.get(name)
            if values is None:
                raise CallerInvalid(f"The token has no claim {name.partition(b':')[2].decode()} that names a caller.")
            fields[name] = values
        return True

    async def refreshed(self) -> bool:
        """Wait until the keys that are being read are there, or can't be had. False where that takes too long, or too many do."""
        if self._waiters >= MAX_WAITERS:
            return False
        self._waiters += 1
        try:
            return await self.source.refreshed()
        finally:
            self._waiters -= 1

    # -- one token ----------------------------------------------------------------------------------------------------

    def _token(self, lines: Sequence[bytes]) -> bytes:
        value = lines[0]
        if len(lines) > 1:
            raise CallerInvalid(_NOT_ONE)
        if len(value) > MAX_TOKEN_BYTES:
            raise CallerInvalid(f"The token is longer than {MAX_TOKEN_BYTES} characters.")
        if value[: len(_BEARER)].lower() == _BEARER:
            return value[len(_BEARER) :].strip(b" ")
        if self._needs_scheme:
            raise CallerInvalid(_NOT_ONE)
        return value

    def _known(self, token: bytes) -> _Verified | None:
        keys = self.source.keys
        if keys is not self._verified_by:  # a key may be gone
            self._verified.clear()
            self._size, self._verified_by = 0, keys
            return None
        found = self._verified.get(blake2b(token, digest_size=32).digest())
        return found if found is not None and found.until > time() else None

    def _verify(self, token: bytes, waited: bool | None) -> _Verified | None:
        keys = self.source.keys
        if keys is None:
            self._await_keys(waited, _NO_KEY)
            return None
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except Exception:  # noqa: BLE001 - a token nested a thousand times is a RecursionError, and no Exception of PyJWT's
            raise CallerInvalid(_MALFORMED) from None
        algorithm, identifier = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._allowed:
            raise CallerInvalid("The token is not signed by an algorithm that counts here.")
        if "crit" in header:  # RFC 7515 section 4.1.11: what must be understood, and isn't
            raise CallerInvalid("The token demands an extension (crit).")
        if identifier is not None and not isinstance(identifier, str):
            raise CallerInvalid(_MALFORMED)
        fitting = keys.find(identifier, algorithm)
        if not fitting and keys.knows(identifier):
            raise CallerInvalid("The token's key is not for the algorithm that it names.")
        claims = self._claims_of(token, fitting)
        if claims is None:
            # An issuer may give another key the id of an old one: a signature that doesn't hold is looked for, too.
            self._await_keys(waited, _NO_KEY if identifier is None or not fitting else _NO_SIGNATURE)
            return None
        return self._remember(token, claims)

    def _await_keys(self, waited: bool | None, invalid: str) -> None:
        """The key isn't there. Raises, unless it may come with the reading that is under way now; ``invalid`` where it didn't."""
        source = self.source
        if waited is None and source.refresh():
            return
        if source.keys is None or source.failed or waited is False:
            raise CallerUnverifiable(_AWAY)
        raise CallerInvalid(invalid)

    def _claims_of(self, token: bytes, keys: Sequence[Key]) -> dict[str, Any] | None:
        """The token's claims, by one of ``keys``; ``None`` where none of them has signed it. Raises `CallerInvalid`."""
        import jwt

        for key in keys:
            try:
                claims: dict[str, Any] = jwt.decode(token, key.material, algorithms=list(key.algorithms), **self._rules)
            except jwt.InvalidSignatureError:
                continue
            except Exception as error:  # noqa: BLE001 - of what PyJWT makes of any bytes, its own errors are the most
                raise CallerInvalid(_reason(error)) from None
            else:
                return claims
        return None

    def _remember(self, token: bytes, claims: dict[str, Any]) -> _Verified:
        fields: dict[bytes, list[bytes]] = {}
        size = _ENTRY_BYTES
        for name in self._claims:
            value = _text(claims.get(name))
            if value:
                fields[claim_name(name)] = [value]
                size += len(value)
        if any(name in claims and not _is_instant(claims[name]) for name in _INSTANTS):
            raise CallerInvalid(_MALFORMED)
        until = float(claims["exp"]) + LEEWAY
        verified = _Verified(until, fields, size)
        digest = blake2b(token, digest_size=32).digest()
        before = self._verified.pop(digest, None)
        self._size += size - (before.size if before is not None else 0)
        self._verified[digest] = verified
        while len(self._verified) > MAX_VERIFIED or self._size > MAX_VERIFIED_BYTES:
            self._size -= self._verified.pop(next(iter(self._verified))).size  # the oldest
        return verified


def _is_instant(value: object) -> bool:
    """Whether it is a NumericDate (RFC 7519 section 2): PyJWT takes texts for one, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_FARTHEST < value < _FARTHEST


def _text(value: object) -> bytes:
    """A claim as a header's value would be, empty where it can name nobody. A whole number is one however it is spelled."""
    if isinstance(value, float):
        if not isfinite(value):  # no JSON; PyJWT reads it, and every NaN would be one caller
            return b""
        if value.is_integer():
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return b""
    return str(value).encode("utf-8", "surrogatepass")


def _reason(error: Exception) -> str:
    """Why a token is refused, in words of ours: PyJWT's may quote it."""
    import jwt

    for kind, words in (
        (jwt.ExpiredSignatureError, "The token has expired."),
        (jwt.ImmatureSignatureError, "The token is not valid yet."),
        (jwt.InvalidAudienceError, "The token is for another audience."),
        (jwt.InvalidIssuerError, "The token is of another issuer."),
        (jwt.MissingRequiredClaimError, "The token lacks exp, or iss or aud, which are looked at here."),
    ):
        if isinstance(error, kind):
            return words
    return _MALFORMED


def all_claims(settings: IdempotencySettings, routes: Sequence[Route]) -> list[str]:
    """The claims that any scope names, each once."""
    rules = [settings, *(route.settings(settings) for route in routes if route.scope is not None)]
    return list(dict.fromkeys(claim for each in rules for claim in claims_of(each)))


def open_tokens(jwt: JwtSettings | None, settings: IdempotencySettings, routes: Sequence[Route]) -> Tokens | None:
    """``None`` where no scope names a claim. Raises ``TypeError``, ``ValueError``: see `Tokens`."""
    if jwt is not None and not isinstance(jwt, JwtSettings):
        raise TypeError(f"jwt is a {type(jwt).__qualname__}: give JwtSettings(jwks=...)")
    claims = all_claims(settings, routes)
    if not claims:
        return None
    if jwt is None:
        raise ValueError(f"scope names a claim (jwt:{claims[0]}) of a token that nothing verifies: give jwt")
    return Tokens(jwt, claims)
