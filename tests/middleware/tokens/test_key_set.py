"""Which keys of an issuer's count, and for what: by their own kind and words.

Rules of docs/contract.md: R6.16.
"""

import base64
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from oncegate.middleware.tokens.key_set import MAX_BYTES, MAX_KEYS, KeySet, UnusableKeys, parse_keys
from oncegate.middleware.tokens.settings import SIGNATURES
from testing.issuer import SigningKey

EC = SigningKey("ec")
RSA = SigningKey("rsa", bits=2048)
WEAK = SigningKey("weak", bits=1024)
ALL = (*SIGNATURES, "HS256", "HS384", "HS512")
RSA_ALGORITHMS = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}


def parsed(*keys: Any, allowed: tuple[str, ...] = SIGNATURES) -> KeySet:
    return parse_keys(json.dumps({"keys": keys}).encode(), allowed)


def secret(size: int, **members: Any) -> dict[str, Any]:
    return {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(b"s" * size).rstrip(b"=").decode(), **members}


def found(keys: KeySet, identifier: str | None) -> set[str]:
    return {algorithm for algorithm in ALL if keys.find(identifier, algorithm)}


def test_a_key_verifies_by_what_it_is_for() -> None:
    without = {name: value for name, value in RSA.jwk().items() if name != "alg"}
    okp = {
        "kid": "ed",
        **jwt.algorithms.OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate().public_key(), as_dict=True),
    }
    keys = parsed(EC.jwk(), without, RSA.jwk(kid="one", alg="PS256"), okp, secret(40), allowed=ALL)
    assert found(keys, "ec") == {"ES256"}
    assert found(keys, "rsa") == RSA_ALGORITHMS
    assert found(keys, "one") == {"PS256"}
    assert found(keys, "ed") == {"EdDSA"}
    assert found(keys, "s") == {"HS256"}, "a secret as long as the hash, as RFC 7518 section 3.2 has it"
    assert found(keys, "other") == set()
    assert found(keys, None) == RSA_ALGORITHMS | {"ES256", "EdDSA", "HS256"}
    assert (keys.knows("ec"), keys.knows("other"), keys.knows(None)) == (True, False, False)
    assert found(parsed(without, allowed=("RS256",)), "rsa") == {"RS256"}, "no more than the settings allow"


@pytest.mark.parametrize(
    "key",
    [
        EC.jwk(use="enc"),
        EC.jwk(key_ops=["sign"]),
        EC.jwk(key_ops="verify"),
        EC.jwk(alg="RS256"),
        EC.jwk(crv="P-384"),
        EC.jwk(crv="secp256k1"),
        EC.jwk(crv=["P-256"]),
        EC.jwk(x="!"),
        EC.jwk(kty="RSA"),
        EC.jwk(kty="OKP"),
        EC.jwk(kty=["EC"]),
        {"kty": "EC", "crv": "P-256"},
        WEAK.jwk(),
        secret(64),
        None,
        "key",
        {},
    ],
)
def test_what_is_no_key_for_signatures_counts_for_nothing(key: Any) -> None:
    assert len(parsed(key, EC.jwk())) == 1
    with pytest.raises(UnusableKeys, match=r"^holds no key that verifies by RS256"):
        parsed(key)


def test_a_secret_counts_only_where_it_is_allowed_and_long_enough() -> None:
    assert found(parsed(secret(64), allowed=("HS512",)), "s") == {"HS512"}
    for key in (secret(31), secret(64, alg="RS256"), secret(64, use="enc")):
        with pytest.raises(UnusableKeys):
            parsed(key, allowed=("HS256",))


def test_a_private_key_is_taken_for_its_public_part() -> None:
    private = jwt.algorithms.ECAlgorithm.to_jwk(EC.private, as_dict=True)
    (key,) = parsed({**private, "kid": "ec"}).find("ec", "ES256")
    assert not hasattr(key.material, "private_numbers")


def test_a_token_without_a_key_s_id_is_tried_with_few() -> None:
    keys = parsed(*[EC.jwk(kid=str(number)) for number in range(20)])
    assert len(keys.find(None, "ES256")) == 4


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "is no JSON"),
        (b"<html>", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[]", "is no JWK set"),
        (b'{"keys": {}}', "is no JWK set"),
        (b'{"keys": []}', "holds no key"),
        (b" " * (MAX_BYTES + 1), "has more than"),
        (json.dumps({"keys": [{}] * (MAX_KEYS + 1)}).encode(), "holds more than"),
    ],
)
def test_what_is_no_set_of_keys_is_refused(document: bytes, why: str) -> None:
    with pytest.raises(UnusableKeys, match=f"^{why}"):
        parse_keys(document, SIGNATURES)
