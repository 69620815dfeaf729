"""Options of a gateway whose instructions are counted: each is on where it is set, and compared with the same build without."""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtests import instructions
from loadtests.__main__ import main
from loadtests.report import Results
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import load
from oncegate.middleware.rules.keys.digests import UNKEYED
from oncegate.middleware.tokens.key_source import KeySource


def options_of(settings: GatewaySettings) -> list[str]:
    encryption, scope = settings.encryption(), settings.idempotency.scope_parts
    is_on = {
        "secret": settings.digests() is not UNKEYED,
        "jwt": settings.jwt is not None and tuple(scope) == ("jwt:iss", "jwt:sub"),
        "encryption": encryption is not None and encryption.encrypts,
        "shadow": settings.idempotency.shadow and settings.idempotency.enforce == 0,
        "access_log": settings.access_log != "none",
        "tracing": settings.tracing and os.environ["OTEL_TRACES_SAMPLER_ARG"] == "1",
        "sampling": settings.tracing and os.environ["OTEL_TRACES_SAMPLER_ARG"] == "0.01",
    }
    return [name for name in instructions.OPTIONS if is_on[name]]


def settings_with(option: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[GatewaySettings, str]:
    environment, credential = instructions.given(option, folder)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return load({"upstream": "http://127.0.0.1:9000"}), credential


@pytest.mark.parametrize("option", ["", *instructions.OPTIONS])
def test_a_gateway_does_what_is_counted(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, credential = settings_with(option, tmp_path, monkeypatch)
    assert options_of(settings) == ([option] if option else [])
    if settings.jwt is not None:
        keys = KeySource(settings.jwt).keys
        assert keys is not None
        assert credential.count(".") == 2


def test_options_are_compared_with_the_same_build_without() -> None:
    results = Results("instructions", {"options": ["secret", "jwt"], "builds": ["source", "compiled"]})
    for build, least in (("source", 200_000), ("compiled", 100_000)):
        for option, factor in (("", 1.0), ("secret", 1.01), ("jwt", 3.0)):
            results.samples += [
                {"build": build, "mode": mode, "option": option, "instructions": least * factor}
                for mode in instructions.MODES["gateway"]
            ]
    (table,) = instructions.tables(results)
    assert list(table.head) == ["build", "request", "thousands, without", "with secret", "with jwt"]
    assert [row[2:] for row in table.rows] == [["200.0", "1.010", "3.000"]] * 4 + [["100.0", "1.010", "3.000"]] * 4


@pytest.mark.parametrize("other", [("--against", "."), ("--door", "app")])
def test_options_are_the_gateway_s_and_no_other_checkout_s(other: tuple[str, str]) -> None:
    done = CliRunner().invoke(main, ["instructions", "--with", "secret", *other])
    assert done.exit_code != 0
    assert re.search("--with is for the gateway", f"{done.output}{done.exception}")
