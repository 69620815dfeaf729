"""The command line as a person or a service manager meets it: real processes, real signals, exit codes.

Rules of docs/contract.md: R10.1, R10.4, R10.5, R10.8.
"""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from testing.command_line import PATIENCE, forked, invoke, run, running


@pytest.fixture(scope="module")
def payments() -> Iterator[str]:
    from oncegate.app.demo.upstream import Payments, serving

    with serving(Payments(lambda line: None)) as url:
        yield url


def test_help() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "oncegate demo" in done.stdout
    assert "curl -X POST" in run("serve", "--help").stdout


NOTHING_ELSE = """
import contextlib, sys, click
from oncegate.app.cli.main import main
for arguments in (["--help"], ["keys", "list", "--help"], ["keys", "nonsense"]):
    with contextlib.suppress(click.UsageError):
        main(arguments, standalone_mode=False)
sys.exit("pydantic" in sys.modules or "uvicorn" in sys.modules)
"""


def test_help_and_wrong_usage_load_only_what_they_need() -> None:
    assert subprocess.run([sys.executable, "-c", NOTHING_ELSE], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "line"),
    [
        ([], {}, "upstream: is missing: give --upstream URL"),
        (["--upstream", "ftp://x"], {}, "upstream (command line): must be a URL that starts with"),
        (["--upstream", "http://x", "--port", "http"], {}, "port (command line): must be a whole number"),
        (["--upstream", "http://x", "--workers", "2"], {}, "workers (command line): memory:// is for"),
        (["--upstream", "http://x"], {"ONCEGATE_PRT": "1"}, "ONCEGATE_PRT (environment): unknown"),
        (["--upstream", "http://x", "--config", "/nowhere"], {}, "/nowhere: can't be read: No such"),
        (["--upstream", "https://x"], {"ONCEGATE_UPSTREAM_CA": "/nowhere"}, "upstream_ca or a URL can't"),
    ],
)
def test_wrong_configuration_is_one_line_and_exit_code_2(
    arguments: list[str], environment: dict[str, str], line: str
) -> None:
    done = invoke("serve", *arguments, **environment)
    assert done.returncode == 2
    assert done.stderr.startswith(f"oncegate: {line}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--upstream", "http://127.0.0.1:9", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr == f"oncegate: can't listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_with_exit_code_0(number: int, payments: str) -> None:
    with running("serve", "--upstream", payments, "--port", "0") as gateway:
        assert httpx.get(f"{gateway.url()}/payments", timeout=PATIENCE).status_code == 200
        assert gateway.stop(number) == 0
    assert "Traceback" not in gateway.output


def test_a_signal_during_the_start_is_not_lost() -> None:
    with running("serve", "--upstream", "http://127.0.0.1:9", "--port", "0", "--cache", "memory://") as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        # Before Python has handlers, the signal just ends it.
        assert gateway.process.wait(PATIENCE) in (0, -signal.SIGTERM)


def test_logs_are_json_where_no_person_reads_them(payments: str) -> None:
    with forked("serve", "--upstream", payments, "--port", "0") as gateway:
        url = gateway.url()
        for amount in (1, 2):
            key = {"Idempotency-Key": "s3cret"}
            httpx.post(f"{url}/payments", headers=key, json={"amount": amount}, timeout=PATIENCE)
        refused = gateway.wait_for(r'\{.*"decision": "key-reused".*\}')[0]
        gateway.stop()
    assert '"record": "' in refused
    assert '"status": 422' in refused
    assert "s3cret" not in gateway.output


def test_the_demo_shows_first_replayed_and_refused() -> None:
    with forked("demo", "--port", "0") as demo:
        url = demo.wait_for(r"oncegate in front of it on (http://[^ ]+?)\.?\n")[1]
        demo.wait_for("Listening")
        pay = re.findall(r"curl -i (\S+)/payments -H 'Idempotency-Key: (\S+)' -d '(.*)'", demo.output)
        assert [origin for origin, _, _ in pay] == [url] * 3
        answers = [
            httpx.post(f"{url}/payments", headers={"Idempotency-Key": key}, content=body, timeout=PATIENCE)
            for _, key, body in pay
        ]
        demo.wait_for(r"oncegate +first +201 .*attempt 1")
        demo.wait_for(r"oncegate +replayed +201 .*not called")
        demo.wait_for(r"oncegate +key-reused +422 .*refused")
        assert demo.stop(signal.SIGINT) == 0
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert answers[0].content == answers[1].content
    assert "reached the payments service: 1. Payments made: 1." in demo.output
    assert "Traceback" not in demo.output
