"""Sockets that a supervisor opens: systemd's own tool and its protocol, before a gateway in a process of its own.

Rules of docs/contract.md: R10.21.
"""

import fcntl
import os
import shlex
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.command_line import ONCEGATE, PATIENCE, Running, forked, forked_with, running_command
from testing.ledger import Ledger
from testing.servers import free_port

ACTIVATE = shutil.which("systemd-socket-activate")


def listening(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


@contextmanager
def activated(
    sockets: Sequence[socket.socket],
    *arguments: str,
    started: Callable[..., AbstractContextManager[Running]],
    count: str = "",
    **environment: str,
) -> Iterator[Running]:
    """`oncegate serve` with ``sockets`` from descriptor 3 on, as systemd starts it."""
    passed = [fcntl.fcntl(each, fcntl.F_DUPFD, 100) for each in sockets]  # none is where another one goes
    variables = {"LISTEN_FDS": count or str(len(sockets))}
    variables |= {name: value for name, value in environment.items() if value}
    with started("serve", *arguments, passed=passed, **variables) as running:
        for each in passed:
            os.close(each)
        yield running


def as_systemd_does(*arguments: str, passed: list[int], **environment: str) -> AbstractContextManager[Running]:
    moves = " ".join(f"{3 + index}<&{each}" for index, each in enumerate(passed))
    script = f"exec {moves}; export LISTEN_PID=$$; exec {shlex.join([*ONCEGATE, *arguments])}"
    return running_command("bash", "-c", script, pass_fds=passed, **environment)


def by_template(*arguments: str, passed: list[int], **environment: str) -> AbstractContextManager[Running]:
    """For what comes after the start: how the variables and the sockets are read."""
    moves = "".join(f"os.dup2({each}, {3 + index}); os.close({each})\n" for index, each in enumerate(passed))
    before = f"import os\nos.environ['LISTEN_PID'] = str(os.getpid())\n{moves}"
    return forked_with(passed, *arguments, before=before, **environment)


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not there")
def test_the_request_that_has_it_started_is_answered(ledger: Ledger, tmp_path: Path) -> None:
    """By systemd's own tool: nothing runs before the first connection comes."""
    port = free_port()
    command = [
        *ONCEGATE,
        "serve",
        "--upstream",
        ledger.url,
        "--cache",
        f"sqlite:///{tmp_path}/records.db",
        "--workers",
        "2",
    ]
    with running_command(str(ACTIVATE), "-l", f"127.0.0.1:{port}", *command) as running:
        running.wait_for("Listening on")
        answer = httpx.post(f"http://127.0.0.1:{port}/payments", headers={"idempotency-key": "a"}, timeout=PATIENCE)
        assert answer.status_code == 201
        assert running.url() == f"http://127.0.0.1:{port}"
        assert running.stop() == 0


def test_while_it_is_started_anew_connections_wait(ledger: Ledger, redis_url: str) -> None:
    """The socket is the supervisor's: none is refused between the end of one process and the start of the next."""
    arguments = ["--upstream", ledger.url, "--cache", redis_url]
    with listening() as opened:
        url = f"http://127.0.0.1:{opened.getsockname()[1]}/payments"
        with activated([opened], *arguments, started=as_systemd_does) as running:
            running.url()
            assert httpx.get(url, timeout=PATIENCE).status_code == 201
            assert running.stop() == 0
        answers: list[int] = []
        waiting = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=PATIENCE).status_code))
        waiting.start()
        with activated([opened], *arguments, started=as_systemd_does) as running:
            waiting.join(PATIENCE)
            assert answers == [201]
            assert running.stop() == 0


@pytest.mark.parametrize("names", ["", "http:ops", "oncegate.socket:oncegate.socket"])
def test_the_socket_of_ops_port_has_the_operations(ledger: Ledger, names: str) -> None:
    with listening() as requests, listening(free_port()) as operations:
        ops_port = str(operations.getsockname()[1])
        variables = {"LISTEN_FDNAMES": names, "ONCEGATE_OPS_PORT": ops_port}
        with activated([requests, operations], "--upstream", ledger.url, started=by_template, **variables) as running:
            url = running.url()
            assert url == f"http://127.0.0.1:{requests.getsockname()[1]}"
            assert httpx.get(f"http://127.0.0.1:{ops_port}/_oncegate/metrics", timeout=PATIENCE).status_code == 200
            assert httpx.get(f"{url}/_oncegate/metrics", timeout=PATIENCE).status_code == 404


def test_what_is_another_process_s_is_left_alone(ledger: Ledger) -> None:
    """Variables that a parent has left in the environment."""
    arguments = ["serve", "--upstream", ledger.url, "--port", "0"]
    with forked(*arguments, LISTEN_PID="1", LISTEN_FDS="1") as running:
        assert httpx.get(f"{running.url()}/payments", timeout=PATIENCE).status_code == 201


def unbound() -> socket.socket:
    return socket.socket()


def connected() -> socket.socket:
    """What a unit with ``Accept=yes`` hands over."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname())


def of_a_path(folder: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(folder / "a.sock"))
    made.listen()
    return made


@pytest.mark.parametrize(
    ("opened", "line"),
    [
        (unbound, "descriptor 3 does not listen"),
        (connected, "descriptor 3 does not listen; a unit's Accept= must be no"),
        (of_a_path, "descriptor 3 is no TCP socket"),
        (lambda: socket.socket(type=socket.SOCK_DGRAM), "descriptor 3 is no TCP socket"),
    ],
)
def test_a_wrong_socket_is_one_line(opened: Callable[..., socket.socket], line: str, tmp_path: Path) -> None:
    with opened(*([tmp_path] if opened is of_a_path else [])) as given:
        assert line in refused([given])


@pytest.mark.parametrize(
    ("count", "names", "line"),
    [
        ("2", "", "descriptor 4 is no socket"),
        ("none", "", "LISTEN_FDS: is no number of sockets"),
        ("0", "", "LISTEN_FDS: is no number of sockets"),
        ("1", "http:ops", "LISTEN_FDNAMES: names 2 sockets, and LISTEN_FDS says 1"),
        ("1", "ops", "the socket named ops does not listen on ops_port (0)"),
    ],
)
def test_wrong_variables_are_one_line(count: str, names: str, line: str) -> None:
    with listening() as given:
        assert line in refused([given], count=count, LISTEN_FDNAMES=names)


def test_no_socket_for_requests_is_one_line() -> None:
    with listening() as given:
        port = str(given.getsockname()[1])
        assert "has no socket for requests" in refused([given], ONCEGATE_OPS_PORT=port)


def refused(sockets: Sequence[socket.socket], **options: Any) -> str:
    """The one line with which it ends."""
    with activated(sockets, "--upstream", "http://127.0.0.1:1", started=by_template, **options) as running:
        printed, _ = running.process.communicate(timeout=PATIENCE)
        assert running.process.returncode == 1
    assert printed.startswith("oncegate: LISTEN_FD")
    assert printed.count("\n") == 1
    return printed


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_supervisor_is_notified_of_start_and_stop(
    ledger: Ledger, redis_url: str, tmp_path: Path, workers: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor, listening() as opened:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(PATIENCE)
        arguments = ["--upstream", ledger.url, "--cache", redis_url, "--workers", workers]
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with activated([opened], *arguments, started=as_systemd_does, **variables) as running:
            received = supervisor.recv(1000).decode().splitlines()
            assert received == ["READY=1", f"MAINPID={running.process.pid}"]
            assert running.stop() == 0
        assert supervisor.recv(1000) == b"STOPPING=1"
