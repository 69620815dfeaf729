"""The callers that meet a scope by a token's claim: what each sends, first and again, and what it is answered."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from oncegate.middleware.tokens import key_source
from testing.issuer import AUDIENCE, ISSUER, Issuer, JwksServer, SigningKey, bearer, by_hand

Lines = list[tuple[str, str]]
SCOPE = ["jwt:iss", "jwt:sub"]
THIEF = SigningKey("k1")
"""Of an attacker, who names it as the issuer's is named."""

Send = Callable[[str, Lines], Awaitable[tuple[int, str, bool]]]
"""Sends a command under a key with these field lines: status, problem's code, and whether it is a replay."""


@dataclass
class Scene:
    """The issuer and where its keys are fetched from, as they stand when a caller comes."""

    issuer: Issuer
    server: JwksServer
    settings: dict[str, Any] = field(default_factory=dict)
    kept: Lines = field(default_factory=list)

    @property
    def jwt(self) -> dict[str, Any]:
        return {
            "jwks": self.server.url,
            "issuer": ISSUER,
            "audience": [AUDIENCE],
            **self.settings,
        }


@contextmanager
def scene() -> Iterator[Scene]:
    issuer = Issuer()
    # Keys may be read as often as tests rotate them, and a slow machine is no issuer that is away.
    constants = pytest.MonkeyPatch()
    constants.setattr(key_source, "REFRESH_INTERVAL", 0.001)
    constants.setattr(key_source, "TIMEOUT", 30.0)
    try:
        with JwksServer(issuer.jwks()) as server:
            yield Scene(issuer, server)
    finally:
        constants.undo()


def the_same(there: Scene) -> Lines:
    there.kept = there.kept or there.issuer.lines()
    return there.kept


def rotated(there: Scene) -> Lines:
    there.issuer.rotate(keep=True)
    there.server.body = there.issuer.jwks()
    return there.issuer.lines()


def away(there: Scene) -> Lines:
    there.server.status = 500
    return there.issuer.lines()


def rotated_and_away(there: Scene) -> Lines:
    there.issuer.rotate()
    return away(there)


def _public_key_as_secret(there: Scene) -> Lines:
    key = there.issuer.keys[-1]
    return bearer(by_hand({"alg": "HS256", "typ": "JWT", "kid": "k1"}, there.issuer.claims(), key.pem))


INVALID: dict[str, Callable[[Scene], Lines]] = {
    "an opaque token": lambda there: bearer("5b8d1c2e-opaque"),
    "another scheme": lambda there: [("authorization", "Basic YWxpY2U6eA==")],
    "two tokens": lambda there: [*there.issuer.lines(), *there.issuer.lines("bob")],
    "expired": lambda there: there.issuer.lines(exp=int(time.time()) - 60),
    "not valid yet": lambda there: there.issuer.lines(nbf=int(time.time()) + 600),
    "without an end": lambda there: there.issuer.lines(exp=None),
    "an end beyond all numbers": lambda there: there.issuer.lines(exp=float("inf")),
    "forged": lambda there: there.issuer.lines(key=THIEF),
    "cut off": lambda there: bearer(there.issuer.token()[:-4]),
    "another audience": lambda there: there.issuer.lines(aud="shipping"),
    "no audience": lambda there: there.issuer.lines(aud=None),
    "another issuer": lambda there: there.issuer.lines(iss="https://other.example"),
    "no subject": lambda there: there.issuer.lines(None),
    "an empty subject": lambda there: there.issuer.lines(""),
    "a subject that is no name": lambda there: there.issuer.lines(["alice"]),
    "a subject that is true": lambda there: there.issuer.lines(True),
    "alg none": lambda there: bearer(by_hand({"alg": "none", "kid": "k1"}, there.issuer.claims())),
    "alg HS256 with the public key": _public_key_as_secret,
    "alg of another kind of key": lambda there: bearer(
        by_hand({"alg": "RS256", "kid": "k1"}, there.issuer.claims(), b"s")
    ),
    "a key of its own": lambda there: there.issuer.lines(key=THIEF, headers={"jwk": THIEF.jwk()}),
    "a key at a URL of its own": lambda there: there.issuer.lines(
        key=THIEF, headers={"kid": "mine", "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/"}
    ),
    "an extension to be understood": lambda there: there.issuer.lines(headers={"crit": ["exp"]}),
    "nested beyond sense": lambda there: bearer("e" * 6000 + ".W10.e"),
    "9 KB": lambda there: there.issuer.lines(padding="x" * 9000),
}
"""Nothing of them is claimed, and no cache is asked."""

VALID: dict[str, Callable[[Scene], Lines]] = {
    "nobody": lambda there: [],
    "a cookie": lambda there: [("cookie", "session=1")],
    "fresh": the_same,
    "refreshed": lambda there: there.issuer.lines(),
    "rotated": rotated,
    "the keys away, and known": away,
}
"""Each of their commands is executed once, however its caller comes again."""


async def comes(there: Scene, send: Send, executions: Callable[[], Awaitable[int]], name: str) -> None:
    """The caller ``name`` comes first, again, and three times at once; all that must hold of it, holds."""
    if name in VALID:
        assert (await send("warm", there.issuer.lines()))[0] < 300, "the keys are there"
        before = await executions()
        lines = VALID[name](there)
        status, _, replayed = await send("first", lines)
        assert (status // 100, replayed) == (2, False)
        again = VALID[name](there)
        status, _, replayed = await send("first", again)
        assert (status // 100, replayed) == (2, True)
        at_once = await asyncio.gather(*[send("at-once", VALID[name](there) or lines) for _ in range(3)])
        assert {code for _, code, _ in at_once} <= {"", "in-flight"}
        assert sum(status < 300 and not replayed for status, _, replayed in at_once) == 1
        assert await executions() == before + 2
        return
    before = await executions()
    answers = [await send("first", INVALID[name](there)), await send("first", INVALID[name](there))]
    answers += await asyncio.gather(*[send("at-once", INVALID[name](there)) for _ in range(3)])
    found = {(status, code) for status, code, _ in answers}
    assert found == {(401, "caller-invalid")}, found
    assert await executions() == before
    assert (await send("first", there.issuer.lines()))[1:] == ("", False), "nothing was claimed"
