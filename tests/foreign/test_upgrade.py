"""Clients that ask for HTTP/2 with their first request, ``Upgrade: h2c``: Java's HttpClient by default, and curl where told to.

It isn't meant for a gateway that speaks HTTP/1.1: the request is answered as if it had not asked (RFC 9110 section 7.8).

Rules of docs/contract.md: R9.5.
"""

import subprocess
from pathlib import Path

import pytest

from testing.caller import fresh_key
from testing.fetching import fetched
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger
from tests.foreign.conftest import HERE, fetched_or_skipped

SIZES = (0, 1024, 1024 * 1024)


def test_javas_client_is_served(gateway: Gateway, ledger: Ledger) -> None:
    done = subprocess.run(
        [fetched_or_skipped("java"), "-XX:TieredStopAtLevel=1", HERE / "Client.java", f"{gateway.url}/payments"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    answers = [line.split(" ", 4) for line in done.stdout.splitlines()]
    assert [(int(size), status, replayed) for _, size, status, replayed, _ in answers] == [
        (size, "201", replayed) for size in SIZES for replayed in ("false", "true")
    ]
    for first, retry in zip(answers[::2], answers[1::2], strict=True):
        assert first[4] == retry[4]
        (arrival,) = ledger.arrivals(first[0])
        assert arrival.body == bytes(int(first[1]))
        assert not {"upgrade", "http2-settings"} & {name for name, _ in arrival.fields}


@pytest.mark.parametrize("size", SIZES)
def test_curl_is_served(gateway: Gateway, ledger: Ledger, tmp_path: Path, size: int) -> None:
    key = fresh_key()
    (tmp_path / "body").write_bytes(b"a" * size)
    command = [
        fetched("curl"),
        "--silent",
        "--http2",
        "--data-binary",
        f"@{tmp_path}/body",
        "-H",
        f"Idempotency-Key: {key}",
    ]
    shown = ["--write-out", "\n%{http_code} %{http_version} %header{idempotent-replayed}\n"]
    twice = [f"{gateway.url}/payments"] * 2  # over one connection
    done = subprocess.run([*command, *shown, *twice], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    receipt, status, again, replayed = done.stdout.splitlines()
    assert (status.split(), replayed.split()) == (["201", "1.1"], ["201", "1.1", "true"])
    assert again == receipt
    (arrival,) = ledger.arrivals(key)
    assert arrival.body == b"a" * size
