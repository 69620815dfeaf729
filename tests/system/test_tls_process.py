"""`oncegate serve` that speaks TLS: two workers, curl, a stop; wrong files are one line and exit code 2.

Rules of docs/contract.md: R9.28, R9.30.
"""

import subprocess
from pathlib import Path

import httpx
import pytest

from testing.caller import fresh_key
from testing.certificates import Authority
from testing.command_line import invoke
from testing.fetching import fetched
from testing.gateway import DEADLINE
from testing.ledger import Ledger
from testing.servers import RedisServer, free_port
from tests.system.conftest import Start


def test_workers_speak_it_to_whoever_verifies(
    start: Start, ledger: Ledger, redis_server: RedisServer, tmp_path: Path
) -> None:
    authority, key = Authority(tmp_path), fresh_key()
    cert, private = authority.issue()
    gateway = start(
        ledger.url,
        redis_server.url,
        workers=2,
        tls_cert=str(cert),
        tls_key=str(private),
        ops_port=(ops_port := free_port()),
        shutdown_timeout=DEADLINE,
    ).ready()
    assert gateway.url.startswith("https://")
    command = [fetched("curl"), "--silent", "--show-error", "--cacert", str(authority.ca), "--data", "amount=1"]
    command += ["--header", f"Idempotency-Key: {key}", "--write-out", "\n%{http_code} %header{idempotent-replayed}"]
    shown = [
        subprocess.run([*command, f"{gateway.url}/payments"], capture_output=True, text=True, timeout=DEADLINE).stdout
        for _ in range(8)  # each a connection of its own, to either worker
    ]
    bodies, ends = zip(*[each.rsplit("\n", 1) for each in shown], strict=True)
    assert len(set(bodies)) == 1
    assert [end.split() for end in ends] == [["201"]] + [["201", "true"]] * 7
    assert len(ledger.arrivals(key)) == 1
    distrusting = subprocess.run([fetched("curl"), "--silent", gateway.url], capture_output=True, timeout=DEADLINE)
    assert distrusting.returncode == 60  # curl's number for a certificate that it can't verify
    with httpx.Client(verify=authority.client(), timeout=DEADLINE) as idle:
        assert idle.get(f"{gateway.url}/_oncegate/healthz").status_code == 200
        assert "oncegate_tls_cert_ends" in idle.get(f"https://127.0.0.1:{ops_port}/_oncegate/metrics").text
        gateway.terminate()
        assert gateway.exit_code() == 0


def test_what_is_probably_not_meant_is_logged(start: Start, ledger: Ledger, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, private = authority.issue(days=-2)
    private.chmod(0o644)
    gateway = start(ledger.url, tls_cert=str(cert), tls_key=str(private)).ready()
    assert f"tls_cert: {cert} ended on " in gateway.text()
    assert f"tls_key: {private} may be read by every user" in gateway.text()


@pytest.mark.parametrize(("command", "code"), [("serve", 2), ("check", 1)])
def test_files_that_can_not_be_used_are_named(tmp_path: Path, command: str, code: int) -> None:
    authority = Authority(tmp_path)
    (cert, _), (_, other) = authority.issue(), authority.issue()
    upstream = ("--upstream", "https://127.0.0.1:9")
    for setting in ("TLS", "UPSTREAM"):
        given = {f"ONCEGATE_{setting}_CERT": str(cert), f"ONCEGATE_{setting}_KEY": str(other)}
        done = invoke(command, *upstream, **given)
        line = f"{setting.lower()}_key: {other} is not the key of the certificate in {cert}"
        assert done.returncode == code
        assert line in done.stderr + done.stdout
        if command == "serve":
            assert done.stderr == f"oncegate: {line}\n"
