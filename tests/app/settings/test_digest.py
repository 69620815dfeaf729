"""The digest of what runs: another one for each setting that differs, and nothing of a secret in it.

Rule of docs/contract.md: R10.15.
"""

import base64
import re
from typing import Any

import pytest

from oncegate.app.settings.admin_tokens import AdminToken
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.shown.digest import settings_digest

KEY = base64.b64encode(b"k" * 32).decode()
OTHER = base64.b64encode(b"o" * 32).decode()
BASE: dict[str, Any] = {"upstream": "http://127.0.0.1:9", "routes": [{"path": "/a", "ttl": 5}, {"path": "/b"}]}


def digest(**given: Any) -> str:
    return settings_digest(GatewaySettings(**{**BASE, **given}))


def test_it_is_the_same_for_the_same_however_it_was_written() -> None:
    assert re.fullmatch("[0-9a-f]{12}", digest())
    assert digest() == digest(max_in_flight=1000) == digest(idempotency={"ttl": 86400})


@pytest.mark.parametrize(
    "given",
    [
        {"upstream": "http://127.0.0.1:10"},
        {"cache": "redis://127.0.0.1:1/1"},
        {"max_in_flight": 999},
        {"idempotency": {"ttl": 1}},
        {"routes": BASE["routes"][::-1]},
        {"routes": [{"path": "/a", "ttl": 6}, {"path": "/b"}]},
        {"secret": "a secret of 32 bytes, or of more than it"},
        {"secret": ["a secret of 32 bytes, or of more than it", "none"]},
        {"encryption_keys": [f"2026:{KEY}"]},
        {"admin_tokens": [AdminToken.of("alice", "t" * 20).setting()]},
        {"cors": {"origins": ["https://shop.example"]}},
        {"log_level": "debug"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_it_is_another_one_for_each_setting_that_differs(given: dict[str, Any]) -> None:
    assert digest(**given) != digest()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"cache": "redis://:p@127.0.0.1:1"}, {"cache": "redis://:q@127.0.0.1:1"}),
        ({"encryption_keys": [f"2026:{KEY}"]}, {"encryption_keys": [f"2026:{OTHER}"]}),
        ({"jwt": {"jwks": "https://i.example/k?p=1"}}, {"jwt": {"jwks": "https://i.example/k?p=2"}}),
    ],
    ids=["cache", "encryption key", "query of jwks"],
)
def test_what_could_be_guessed_is_not_in_it(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Everybody sees the digest: with a password in it, guesses of that could be tried."""
    assert digest(**one) == digest(**other)
