"""Where secrets come from, and where they may not stand. Rules of docs/contract.md: R6.21, R10.12."""

import asyncio
import base64
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError, load
from oncegate.middleware.rules.keys.key import key_digest
from testing.command_line import invoke
from testing.served import served
from testing.upstreams import OK, Upstream, answering

NEW, OLD = "a new secret of 32 bytes or more", "an old secret of 32 bytes or more"
REQUIRED = {"upstream": "http://127.0.0.1:9"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MY_SECRET", NEW)
    monkeypatch.setenv("MY_OLD_SECRET", OLD)
    return tmp_path / "oncegate.toml"


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('secret = "${MY_SECRET}"', NEW),
        ('secret = ["${MY_SECRET}", "${MY_OLD_SECRET}"]', [NEW, OLD]),
        ('secret = ["${MY_SECRET}", "none"]', [NEW, None]),
        ("", None),
    ],
)
def test_a_file_names_the_variables_that_hold_secrets(file: Path, text: str, given: object) -> None:
    file.write_text(text)
    assert load(REQUIRED, str(file)).given_secrets == given


@pytest.mark.parametrize("text", [f'secret = "{NEW}"', f'secret = ["${{MY_SECRET}}", "{OLD}"]'])
def test_no_secret_stands_in_the_file_itself(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="name a variable") as refusal:
        load(REQUIRED, str(file))
    assert "32 bytes" not in str(refusal.value)


def test_a_file_of_its_own_holds_one_or_two_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "secret"
    monkeypatch.setenv("ONCEGATE_SECRET_FILE", str(mounted))
    with pytest.raises(ConfigurationError, match=r"secret_file \(ONCEGATE_SECRET_FILE\): can't be read"):
        load(REQUIRED)
    for text, given in (("a" * 32 + "\n", ["a" * 32]), ("a" * 32 + "\n" + "b" * 32, ["a" * 32, "b" * 32])):
        mounted.write_text(text)
        assert load(REQUIRED).given_secrets == given
    mounted.write_text("\n")
    with pytest.raises(ConfigurationError, match=r"secret_file \(.*\): names a file that is empty"):
        load(REQUIRED)
    monkeypatch.setenv("ONCEGATE_SECRET", NEW)
    with pytest.raises(ConfigurationError, match=r"secret_file \(.*\): excludes secret \(ONCEGATE_SECRET\)"):
        load(REQUIRED)


def test_encryption_keys_have_a_file_of_their_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, mounted = [f"{name}:{base64.b64encode(os.urandom(32)).decode()}" for name in "12"], tmp_path / "keys"
    monkeypatch.setenv("ONCEGATE_ENCRYPTION_KEYS_FILE", str(mounted))
    with pytest.raises(
        ConfigurationError, match=r"encryption_keys_file \(ONCEGATE_ENCRYPTION_KEYS_FILE\): can't be read"
    ):
        load(REQUIRED)
    for given in (keys[:1], keys, keys[::-1], ["none", keys[0]]):
        mounted.write_text("".join(f"{key}\n" for key in given))
        assert load(REQUIRED).encryption_keys == tuple(given)
    mounted.write_text(f"{keys[0]}\n{keys[0]}\n")
    with pytest.raises(ConfigurationError, match="encryption_keys: two have one id") as refusal:
        load(REQUIRED)
    assert keys[0][2:] not in str(refusal.value)
    mounted.write_text("\n")
    with pytest.raises(ConfigurationError, match=r"encryption_keys_file \(.*\): names a file that is empty"):
        load(REQUIRED)
    monkeypatch.setenv("ONCEGATE_ENCRYPTION_KEYS", f'["{keys[0]}"]')
    with pytest.raises(
        ConfigurationError, match=r"encryption_keys_file \(.*\): excludes encryption_keys \(ONCEGATE_ENC"
    ):
        load(REQUIRED)


@pytest.mark.parametrize("value", ["too-short", f'["{NEW}", "{NEW}"]', f'["{NEW}", "{OLD}"'])
def test_a_secret_that_can_t_be_used_is_refused_and_not_quoted(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ONCEGATE_SECRET", value)
    with pytest.raises(ConfigurationError, match=r"(?i)secret") as refusal:
        load(REQUIRED)
    assert "too-short" not in str(refusal.value)
    assert NEW not in str(refusal.value)


@pytest.mark.parametrize("secret", ["7" * 32, '"' + "a" * 40 + '"', "{" + "a" * 40, "null" * 8])
def test_a_secret_in_the_environment_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """(Only what begins with a bracket is a list.)"""
    monkeypatch.setenv("ONCEGATE_SECRET", secret)
    assert load(REQUIRED).given_secrets == secret


def test_settings_show_no_secret() -> None:
    assert NEW not in repr(GatewaySettings(upstream="http://a", secret=NEW))
    assert NEW not in repr(GatewaySettings(upstream="http://a", secret=(NEW, OLD)))


async def test_records_are_found_by_key_under_each_secret_in_use(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    namespace = uuid4().hex
    async with Upstream(answering(OK)) as upstream:
        steps: list[dict[str, Any]] = [{"secret": OLD}, {"secret": (NEW, OLD)}, {"secret": NEW}]
        for given in steps:
            async with served(upstream.url, cache=redis_url, namespace=namespace, **given) as (client, _):
                await client.post("/x", headers={"Idempotency-Key": "order-7"})
    assert key_digest("order-7") not in caplog.text
    show = ("keys", "show", "order-7", "--json", "--cache", redis_url)
    environment = {"ONCEGATE_NAMESPACE": namespace}
    without = await asyncio.to_thread(partial(invoke, *show, **environment))
    assert without.returncode == 1
    environment["ONCEGATE_SECRET"] = f'["{NEW}", "{OLD}"]'
    shown = await asyncio.to_thread(partial(invoke, *show, **environment))
    assert shown.returncode == 0
    assert shown.stdout.count('"state": "succeeded"') == 2
