"""An issuer's answer that never ends is given up in time, wherever it drips: a bound on each read is none on the whole."""

import random
import time

import pytest

from oncegate import JwtSettings
from oncegate.middleware.tokens import key_source
from oncegate.middleware.tokens.key_set import UnusableKeys
from oncegate.middleware.tokens.key_source import KeySource
from testing.dripping import CHUNKED, DRIPS, dripping
from testing.issuer import Issuer, SigningKey


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", DRIPS)
def test_an_answer_that_never_ends_is_given_up(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_source, "TIMEOUT", 0.4)
    with dripping(*DRIPS[where]) as url:
        source = KeySource(JwtSettings(jwks=f"{url}/jwks.json"))
        with pytest.raises(UnusableKeys):
            source.read()


@pytest.mark.timeout(300)
def test_wherever_it_begins_to_drip_it_is_given_up(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_source, "TIMEOUT", 0.2)
    draw = random.Random(25)
    whole = CHUNKED + b"5\r\n{   }\r\n0\r\n\r\n"
    for _ in range(200 if pytestconfig.getoption("--long") else 10):
        at = draw.randrange(len(whole) - 2)
        with dripping(whole[:at], draw.choice([b"\x20", b"a", b"x: y\r\n"]), pause=0.01) as url:
            began = time.monotonic()
            with pytest.raises(UnusableKeys):
                KeySource(JwtSettings(jwks=f"{url}/jwks.json")).read()
            assert time.monotonic() - began < 30


def test_two_keys_of_one_id_both_count() -> None:
    first, second = SigningKey("same"), SigningKey("same")
    from oncegate.middleware.tokens.key_set import parse_keys

    keys = parse_keys(Issuer(first, second).jwks(), ("ES256",))
    assert len(keys.find("same", "ES256")) == 2
