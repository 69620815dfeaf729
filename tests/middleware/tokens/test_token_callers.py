"""Callers who are known by what their token claims, in an app: who is one, who is none, and what a refreshed token names.

Rules of docs/contract.md: R4.33, R4.35, R6.6, R6.15, R6.16, R6.17, R6.18, R6.19.
"""

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from oncegate import IdempotencyMiddleware, IdempotencySettings, JwtSettings, MemoryCache, Route
from oncegate.middleware.rules.keys.key import record_key, scope_parts
from oncegate.middleware.tokens import key_source, verifier
from oncegate.middleware.tokens.key_set import UnusableKeys
from oncegate.middleware.tokens.key_source import KeySource
from testing.issuer import Issuer, SigningKey
from testing.waiting import until
from tests.middleware.door import Answered, Answering, Door
from tests.token_callers import INVALID, SCOPE, VALID, Lines, Scene, comes, rotated_and_away, scene


@pytest.fixture
def there() -> Iterator[Scene]:
    with scene() as made:
        yield made


def door(app: Any, jwt: dict[str, Any], **options: Any) -> Door:
    options = {"scope": SCOPE} | options
    return Door(app, MemoryCache(), uuid4().hex, jwt=JwtSettings(**jwt), **options)


def at(file: str | Path, **settings: Any) -> dict[str, Any]:
    return {"jwks": str(file), **settings}


@pytest.mark.parametrize("name", [*VALID, *INVALID])
async def test_each_caller_in_an_app(there: Scene, name: str) -> None:
    made = door(app := Answering(201), there.jwt)

    async def send(key: str, lines: Lines) -> tuple[int, str, bool]:
        call = await made.send(key=key, headers=lines)
        return call.status, call.code if call.status >= 400 else "", call.replayed

    async def executions() -> int:
        return app.calls

    await comes(there, send, executions, name)


async def test_a_refused_token_asks_no_cache_and_quotes_nothing(there: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = door(app := Answering(201), there.jwt, watch=(answered := Answered()))
    for caller in INVALID.values():
        lines = caller(there)
        call = await made.send(headers=lines)
        assert call.value("www-authenticate") == 'Bearer error="invalid_token"'
        assert call.problem["retryable"] is False
        for _, value in lines:
            assert value not in caplog.text
            assert value.encode() not in call.body
    assert (app.calls, sum(answered.count.values()), made.slots) == (0, 0, 0)


async def test_a_thousand_refreshed_tokens_execute_nothing_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And by the whole header, which is the default, each of them would."""
    issuer = Issuer()
    jwks = issuer.write(tmp_path / "jwks.json")
    executed = {}
    runs: list[tuple[str, dict[str, Any], int]] = [("jwt:sub", {"scope": ["jwt:sub"]}, 1000), ("default", {}, 100)]
    for kind, options, refreshes in runs:
        app = Answering(201)
        made = Door(app, MemoryCache(), uuid4().hex, jwt=JwtSettings(jwks=jwks), **options)
        for _ in range(1 + refreshes):
            assert (await made.send(headers=issuer.lines())).status == 201
        executed[kind] = app.calls
    assert executed == {"jwt:sub": 1, "default": 101}
    (warning,) = [line for line in caplog.messages if line.startswith("Authorization changes with each token here")]
    assert 'scope = ["jwt:iss", "jwt:sub"]' in warning


async def test_what_names_a_caller_and_what_only_looks_like_it(tmp_path: Path) -> None:
    issuer = Issuer()
    jwks = issuer.write(tmp_path / "jwks.json")
    made = door(app := Answering(201), {"jwks": jwks}, scope=["jwt:sub", "header:X-Tenant"])
    callers: list[Lines] = [
        issuer.lines("alice"),
        issuer.lines("bob"),
        issuer.lines(7),
        issuer.lines(7.5),
        issuer.lines("é \ud800"),
        [*issuer.lines("alice"), ("x-tenant", "a")],
        [("x-tenant", "alice")],
        [("x-tenant", "a")],
        [("jwt:sub", "alice"), ("x-tenant", "b")],
        [],
    ]
    for number, caller in enumerate(callers, 1):
        assert (await made.send(headers=caller)).body == b"answer %d" % number
    for number, caller in enumerate(callers, 1):
        assert (await made.send(headers=caller)).body == b"answer %d" % number
    assert (await made.send(headers=issuer.lines("7"))).body == b"answer 3", "however a number is spelled"
    assert (await made.send(headers=issuer.lines(7.0))).body == b"answer 3"
    assert app.calls == len(callers)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
async def test_a_number_that_json_lacks_names_nobody(tmp_path: Path, number: float) -> None:
    issuer = Issuer()
    made = door(Answering(201), {"jwks": issuer.write(tmp_path / "jwks.json")}, scope=["jwt:sub"], require_scope=True)
    assert (await made.send(headers=issuer.lines(number))).code in {"caller-missing", "caller-invalid"}


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("instant", ["{}", True, float("inf"), 2**60])
async def test_an_instant_is_a_number(tmp_path: Path, claim: str, instant: Any) -> None:
    issuer = Issuer()
    made = door(Answering(201), {"jwks": issuer.write(tmp_path / "jwks.json")}, scope=["jwt:sub"])
    written = instant.format(int(time.time()) + (600 if claim == "exp" else -600)) if instant == "{}" else instant
    answer = await made.send(headers=issuer.lines("alice", **{claim: written}))
    assert (answer.status, answer.code) == (401, "caller-invalid")


def test_no_header_is_taken_for_a_claim() -> None:
    fields = {b"sub": [b"alice"], b"jwt": [b"sub", b"alice"]}
    claimed = {b"jwt:sub": [b"alice"]}
    keys = {
        record_key("n", "k", scope_parts(given, names))
        for given, names in (
            (fields, (b"sub",)),
            (fields, (b"jwt",)),
            (claimed, (b"jwt:sub",)),
            (claimed, (b"jwt:iss", b"jwt:sub")),
        )
    }
    assert len(keys) == 4


async def test_without_a_token_as_without_a_header(tmp_path: Path) -> None:
    issuer = Issuer()
    jwks = at(issuer.write(tmp_path / "jwks.json"))
    missing = await door(app := Answering(201), jwks, require_scope=True).send(headers=[("cookie", "a=b")])
    assert (missing.code, missing.value("www-authenticate")) == ("caller-missing", 'Bearer realm="oncegate"')
    assert "authorization" in missing.problem["detail"]
    mixed = door(app, jwks, scope=["jwt:sub", "header:X-Key"], require_scope=True)
    assert (await mixed.send()).value("www-authenticate") == 'Bearer realm="oncegate", Header name="x-key"'
    assert (await mixed.send(headers=[("x-key", "a")])).status == 201
    assert (await mixed.send(key=None, headers=[("authorization", "Bearer x")])).status == 201, "no key, no caller"
    assert app.calls == 2


async def test_a_header_of_its_own_needs_no_scheme(tmp_path: Path) -> None:
    issuer = Issuer()
    jwks = at(issuer.write(tmp_path / "jwks.json"), header="X-Token")
    made = door(app := Answering(201), jwks)
    for value in (issuer.token(), f"Bearer {issuer.token()}", f"bearer  {issuer.token()}"):
        assert (await made.send(headers=[("x-token", value), ("authorization", "Basic x")])).status == 201
    assert app.calls == 1


async def test_a_token_is_signed_as_its_key_and_the_settings_have_it(tmp_path: Path) -> None:
    """Whatever it says: of one RSA key there are signatures by six algorithms, which are all valid."""
    key = SigningKey("rsa", bits=2048)
    issuer, file = Issuer(key), tmp_path / "jwks.json"
    without = {name: value for name, value in key.jwk().items() if name != "alg"}
    for jwk, allowed, counts in (
        (key.jwk(), ["RS256", "PS256", "RS512"], {"RS256"}),
        (without, ["PS256", "HS256"], {"PS256"}),
        (without, ["RS256", "PS256"], {"RS256", "PS256"}),
    ):
        file.write_text(json.dumps({"keys": [jwk]}))
        made = door(Answering(201), at(file, algorithms=allowed))
        for algorithm in ("RS256", "PS256", "RS512"):
            call = await made.send(headers=issuer.lines(algorithm=algorithm))
            assert call.status == (201 if algorithm in counts else 401), (algorithm, counts)


async def test_a_token_and_a_key_may_have_no_id(tmp_path: Path) -> None:
    issuer = Issuer(SigningKey(None), SigningKey(None))
    made = door(app := Answering(201), at(issuer.write(tmp_path / "jwks.json")))
    for key in issuer.keys:
        assert (await made.send(headers=issuer.lines(key=key))).status == 201
    assert (await made.send(headers=issuer.lines(key=SigningKey(None)))).code == "caller-invalid"
    assert app.calls == 1


# -- the issuer's keys


def test_what_a_url_answers_is_bounded(
    there: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(why: str, timeout: float = 30) -> None:
        monkeypatch.setattr(key_source, "TIMEOUT", timeout)
        with pytest.raises(UnusableKeys, match=rf"^jwks: {why}$"):
            KeySource(JwtSettings(jwks=there.server.url)).read()

    assert len(KeySource(JwtSettings(jwks=there.server.url)).read()) == 1
    there.server.body = b" " * 3_000_000
    refused("has more than 262144 bytes")
    there.server.drips = True
    refused("did not answer in time", timeout=0.2)
    there.server.drips, there.server.status = False, 302
    refused("answered 302")
    there.server.hold()
    refused("did not answer in time", timeout=0.2)
    assert not [record for record in caplog.records if record.name == "asyncio"]  # a task that nobody has ended, say


async def test_until_there_are_keys_nothing_is_claimed(there: Scene) -> None:
    there.server.status = 503
    made = door(app := Answering(201), there.jwt, watch=(answered := Answered()))
    away = await made.send(headers=there.issuer.lines())
    assert (away.status, away.code, away.problem["retryable"]) == (503, "caller-unverifiable", True)
    assert away.value("retry-after") == "1"
    assert (app.calls, sum(answered.count.values())) == (0, 0)
    there.server.status = 200
    assert (await made.send(headers=there.issuer.lines())).status == 201, "they came back, and so does the client"


async def test_an_unknown_key_of_an_issuer_that_is_away_may_be_new(there: Scene) -> None:
    made = door(app := Answering(201), there.jwt)
    assert (await made.send(headers=there.issuer.lines())).status == 201
    before = there.issuer.lines()
    assert (await made.send(headers=rotated_and_away(there))).code == "caller-unverifiable"
    assert (await made.send(headers=before)).replayed, "the keys that were there last still count"
    tokens = made.middleware.door.tokens
    assert tokens is not None
    await until(lambda: tokens.source._reading is None, "the one in the background is over")
    there.server.body, there.server.status = there.issuer.jwks(), 200
    assert (await made.send(headers=there.issuer.lines())).replayed
    gone = await made.send(headers=before)
    assert gone.code == "caller-invalid", "of a key that its issuer has taken back, though its token was known"
    assert app.calls == 1


async def test_requests_that_wait_for_keys_share_one_fetch(there: Scene) -> None:
    there.server.hold()
    made = door(app := Answering(201), there.jwt)
    calls = [made.begin(key=f"k-{number}", headers=there.issuer.lines()) for number in range(20)]
    tokens = made.middleware.door.tokens
    assert tokens is not None
    await until(lambda: tokens._waiters == 20)
    there.server.hold(False)
    assert {(await call.answered()).status for call in calls} == {201}
    assert (app.calls, there.server.fetched) == (20, 1)


async def test_who_waits_too_long_or_among_too_many_is_told_to_come_again(
    there: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.server.hold()
    monkeypatch.setattr(key_source, "TIMEOUT", 0.05)
    made = door(app := Answering(201), there.jwt)
    assert (await made.send(headers=there.issuer.lines())).code == "caller-unverifiable"
    monkeypatch.setattr(key_source, "TIMEOUT", 30.0)
    monkeypatch.setattr(verifier, "MAX_WAITERS", 0)
    assert (await door(app, there.jwt).send(headers=there.issuer.lines())).code == "caller-unverifiable"
    assert app.calls == 0


async def test_unknown_keys_make_no_more_than_a_fetch_per_interval(
    there: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_source, "REFRESH_INTERVAL", 3600.0)
    made = door(Answering(201), there.jwt)
    await made.send(headers=there.issuer.lines())
    for number in range(20):
        stranger = SigningKey(f"unknown {number}")
        assert (await made.send(headers=there.issuer.lines(key=stranger))).code == "caller-invalid"
    assert there.server.fetched == 1


async def test_a_key_that_is_renewed_under_its_id_counts_at_once(there: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not first after an hour; and who forges signatures has it read no more often than once in an interval."""
    monkeypatch.setattr(key_source, "REFRESH_INTERVAL", 0.001)
    made = door(app := Answering(201), there.jwt)
    assert (await made.send(headers=there.issuer.lines())).status == 201
    there.issuer.keys = [SigningKey(there.issuer.keys[-1].identifier)]
    there.server.body = there.issuer.jwks()
    assert (await made.send(headers=there.issuer.lines())).replayed
    assert app.calls == 1
    monkeypatch.setattr(key_source, "REFRESH_INTERVAL", 3600.0)
    there.server.fetched = 0
    made = door(Answering(201), there.jwt)
    await made.send(headers=there.issuer.lines())
    for _ in range(20):
        forged = there.issuer.lines(key=SigningKey(there.issuer.keys[-1].identifier))
        answer = await made.send(headers=forged)
        assert (answer.status, answer.problem["detail"]) == (401, "The token's signature doesn't hold.")
    assert there.server.fetched == 1


async def test_a_file_is_read_anew_for_a_key_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_source, "REFRESH_INTERVAL", 0.001)
    issuer = Issuer()
    file = tmp_path / "jwks.json"
    issuer.write(file)
    made = door(app := Answering(201), at(file))
    assert (await made.send(headers=issuer.lines())).status == 201
    issuer.rotate()
    issuer.write(file)
    assert (await made.send(headers=issuer.lines())).replayed
    file.unlink()
    assert (await made.send(headers=issuer.lines())).replayed
    assert app.calls == 1


async def test_a_key_that_is_gone_counts_no_more_once_the_keys_are_read_anew(
    there: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_source, "MAX_AGE", 0.001)
    made = door(Answering(201), there.jwt)
    before = there.issuer.lines()
    assert (await made.send(headers=before)).status == 201
    there.issuer.rotate()
    there.server.body = there.issuer.jwks()

    async def refused() -> bool:
        return (await made.send(headers=before)).status == 401

    await until(refused)


# -- what is remembered


async def test_a_token_is_verified_once_and_forgotten_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer()
    made = door(Answering(201), at(issuer.write(tmp_path / "jwks.json")))
    tokens = made.middleware.door.tokens
    assert tokens is not None
    verified: list[bytes] = []
    verify = tokens._verify

    def counted(token: bytes, waited: bool | None) -> Any:
        verified.append(token)
        return verify(token, waited)

    monkeypatch.setattr(tokens, "_verify", counted)
    lines = issuer.lines()
    for _ in range(3):
        assert (await made.send(headers=lines)).status == 201
    assert len(verified) == 1
    later = time.time() + 311
    monkeypatch.setattr(verifier, "time", lambda: later)
    await made.send(headers=lines)
    assert len(verified) == 2
    monkeypatch.setattr(verifier, "MAX_VERIFIED", 3)
    for _ in range(10):
        await made.send(headers=issuer.lines())
    kept = tokens._verified
    assert len(kept) == 3
    size = tokens._size
    assert size == sum(each.size for each in kept.values())
    monkeypatch.setattr(verifier, "MAX_VERIFIED_BYTES", size - 1)
    await made.send(headers=issuer.lines())
    assert len(kept) == 2


# -- how it is set up


def test_what_can_t_be_is_refused_when_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jwks = Issuer().write(tmp_path / "jwks.json")
    scoped = IdempotencySettings(scope=["jwt:sub"])
    app: Any = Answering(201)

    def build(**options: Any) -> None:
        IdempotencyMiddleware(app, cache=MemoryCache(), **options)

    with pytest.raises(ValueError, match=r"scope names a claim \(jwt:sub\) of a token that nothing verifies: give jwt"):
        build(settings=scoped)
    with pytest.raises(ValueError, match=r"jwt:tenant"):
        build(routes=[Route(path="/a", scope=["jwt:tenant"])])
    with pytest.raises(TypeError, match=r"^jwt is a str: give JwtSettings\(jwks=\.\.\.\)$"):
        build(settings=scoped, jwt=jwks)
    with pytest.raises(ValueError, match=r"^jwks: can't be read: No such file or directory$"):
        build(settings=scoped, jwt=JwtSettings(jwks=str(tmp_path / "none.json")))
    monkeypatch.setitem(__import__("sys").modules, "jwt", None)
    with pytest.raises(ValueError, match=r"^a scope by a token's claim needs PyJWT: pip install 'oncegate\[jwt\]'$"):
        build(settings=scoped, jwt=JwtSettings(jwks=jwks))
    build(jwt=JwtSettings(jwks=jwks))


@pytest.mark.parametrize(
    "settings",
    [
        {"jwks": ""},
        {"jwks": "ftp://issuer.example/jwks"},
        {"jwks": "https://"},
        {"jwks": "f", "algorithms": []},
        {"jwks": "f", "algorithms": ["none"]},
        {"jwks": "f", "algorithms": ["RS256", "None"]},
        {"jwks": "f", "header": "not a name"},
    ],
)
def test_settings_that_can_t_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        JwtSettings(**settings)


@pytest.mark.parametrize("scope", [["jwt:"], ["jwt:a b"], ["jwt:exp"], ["jwt:jti"], ["claim:sub"], ["sub"]])
def test_scopes_that_can_t_be(scope: list[str]) -> None:
    with pytest.raises(ValueError):
        IdempotencySettings(scope=scope)
