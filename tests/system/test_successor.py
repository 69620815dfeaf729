"""SIGUSR2: a gateway starts the one that replaces it, as its own child, so that a supervisor goes on with that one.

Rules of docs/contract.md: R10.20, R10.21.
"""

import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from testing.command_line import PATIENCE, running
from testing.ledger import Ledger
from testing.servers import free_port
from testing.waiting import wait_until


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_supervisor_s_main_process_becomes_the_new_one(
    ledger: Ledger, redis_url: str, tmp_path: Path, workers: str
) -> None:
    config, port = tmp_path / "oncegate.toml", free_port()
    right = (
        f'upstream = "{ledger.url}"\ncache = "{redis_url}"\nport = {port}\nworkers = {workers}\ncache_timeout = 10\n'
    )
    config.write_text(right)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(PATIENCE)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "RUNTIME_DIRECTORY": str(tmp_path)}
        with running("serve", "--config", str(config), **environment) as gateway:
            assert supervisor.recv(1000).decode() == f"READY=1\nMAINPID={gateway.process.pid}"
            config.write_text("upstreams = 1")
            gateway.process.send_signal(signal.SIGUSR2)
            gateway.wait_for("oncegate: .*upstreams.*\n")  # the one line of the successor, which does not start
            assert httpx.get(f"http://127.0.0.1:{port}/payments", timeout=PATIENCE).status_code == 201
            config.write_text(right)
            gateway.process.send_signal(signal.SIGUSR2)
            ready, main = supervisor.recv(1000).decode().splitlines()
            assert ready == "READY=1"
            successor = int(main.removeprefix("MAINPID="))
            assert successor != gateway.process.pid
            assert gateway.process.wait(PATIENCE) == 0
            assert httpx.get(f"http://127.0.0.1:{port}/payments", timeout=PATIENCE).status_code == 201
            os.kill(successor, signal.SIGTERM)
            assert supervisor.recv(1000) == b"STOPPING=1"
            wait_until(lambda: refuses(port), "it has stopped")
            gateway.output += gateway.process.communicate(timeout=PATIENCE)[0]
    assert gateway.output.count("listening on") == 2 * int(workers)


def refuses(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0
