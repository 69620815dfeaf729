"""Stopping, and what several workers do: real processes, a real Redis, a payments service that takes its time.

Rules of docs/contract.md: R10.8, R10.9, R10.11, R11.15.
"""

import asyncio
import os
import signal
import socket
import socketserver
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self
from uuid import uuid4

import hiredis
import httpx
import pytest

from oncegate.app.demo.upstream import Payments, serving
from testing.command_line import PATIENCE, Running, forked
from testing.waiting import wait_until

KEY = {"Idempotency-Key": "order-1"}


class OldRedis(socketserver.ThreadingUnixStreamServer):
    """Speaks the protocol, and tells of a version that lacks what is needed."""

    daemon_threads = True

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            commands = hiredis.Reader()
            while data := self.request.recv(65536):
                commands.feed(data)
                while command := commands.gets():
                    info = b"redis_version:6.2.14\r\n"
                    reply = b"$%d\r\n%b\r\n" % (len(info), info) if command[0] == b"INFO" else b"+OK\r\n"
                    self.request.sendall(reply)

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), self.Handler)
        self.url = f"unix://{path}"

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class SlowPayments(Payments):
    """Its slow requests take as long as the test wants: until ``go_on`` is set. ``url`` is where it is."""

    url: str

    def __init__(self) -> None:
        super().__init__(lambda line: self.answered.set(), slow_seconds=0.0)
        self.answered = Event()
        self.go_on = Event()

    async def _answer(self, method: str, path: str, key: str, body: bytes) -> tuple[int, Any]:
        answer = await super()._answer(method, path, key, body)
        while path == "/payments/slow" and not self.go_on.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.005)
        return answer


@pytest.fixture
def service() -> Iterator[SlowPayments]:
    service = SlowPayments()
    with serving(service) as service.url:
        yield service
        service.go_on.set()


def in_front_of(service: SlowPayments, cache: str = "memory://") -> list[str]:
    """The command of a gateway in front of it."""
    return ["serve", "--upstream", service.url, "--cache", cache, "--port", "0"]


def pay_slowly(url: str) -> httpx.Response:
    return httpx.post(f"{url}/payments/slow", headers=KEY, json={"amount": 1}, timeout=PATIENCE)


PATIENT = {"ONCEGATE_CACHE_TIMEOUT": "10"}
"""With a cache that is there, on a machine that may stand still for a while."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=["SIGTERM", "SIGQUIT"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_finishes_the_request_in_flight(
    workers: int, number: signal.Signals, redis_url: str, service: SlowPayments, tmp_path: Path
) -> None:
    serve = [*in_front_of(service, redis_url), "--workers", str(workers)]
    settings = PATIENT | {"ONCEGATE_NAMESPACE": tmp_path.name, "ONCEGATE_SHUTDOWN_TIMEOUT": "600"}
    with forked(*serve, **settings) as gateway, ThreadPoolExecutor() as threads:
        url = gateway.url(workers)
        pending = threads.submit(pay_slowly, url)
        wait_until_called(service)
        gateway.process.send_signal(number)
        until_refused(url)
        assert not pending.done()
        service.go_on.set()
        assert pending.result().status_code == 201
        assert gateway.stop() == 0
    assert "Traceback" not in gateway.output
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2], ids=lambda number: number.name)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_that_asks_for_nothing_cuts_nobody_off(
    workers: int, number: signal.Signals, redis_url: str, service: SlowPayments
) -> None:
    """Sent to each process, as by a terminal that is closed, while a request is in flight. (SIGHUP asks for what is there.)"""
    serve = [*in_front_of(service, redis_url), "--workers", str(workers)]
    with forked(*serve, **PATIENT, ONCEGATE_NAMESPACE=uuid4().hex) as gateway, ThreadPoolExecutor() as threads:
        url = gateway.url(workers)
        processes = [gateway.process.pid, *(workers_of(gateway) if workers > 1 else ())]
        pending = threads.submit(pay_slowly, url)
        wait_until_called(service)
        for process in processes:
            os.kill(process, number)
        line = f"{number.name} is ignored"
        if number is signal.SIGHUP:
            line = "reloaded: configuration|SIGHUP is for the parent process"
        gateway.wait_for(line, times=len(processes))
        assert not pending.done()
        service.go_on.set()
        assert pending.result().status_code == 201
        assert httpx.get(f"{url}/_oncegate/healthz", timeout=PATIENCE).status_code == 200
        assert gateway.stop() == 0
    assert "ended by itself" not in gateway.output


def until_refused(url: str) -> None:
    """A connection that is taken and not served would be worse than none: nobody may listen while requests end."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))

    def refused() -> bool:
        try:
            socket.create_connection(address, timeout=PATIENCE).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(refused, "the port is closed", not_yet=(ConnectionResetError,))


def wait_until_called(service: SlowPayments) -> None:
    wait_until(lambda: service.calls, "the service is called")


def stop_while_it_is_called(gateway: Running, service: SlowPayments) -> None:
    """The gateway is told to stop while the service works, and ends well."""
    assert not service.answered.is_set()
    gateway.process.send_signal(signal.SIGTERM)
    gateway.wait_for("stopping")
    with pytest.raises(subprocess.TimeoutExpired):
        gateway.process.wait(0.5)
    service.go_on.set()
    assert gateway.stop() == 0
    assert service.answered.is_set()


def test_a_stop_records_the_attempt_of_a_client_that_has_left(
    redis_url: str, service: SlowPayments, tmp_path: Path
) -> None:
    serve = in_front_of(service, redis_url)
    settings = PATIENT | {"ONCEGATE_NAMESPACE": tmp_path.name}
    with forked(*serve, **settings) as gateway:
        port = int(gateway.url().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
            client.sendall(
                b"POST /payments/slow HTTP/1.1\r\nhost: a\r\nidempotency-key: order-1\r\n"
                b"content-type: application/json\r\ncontent-length: 12\r\n\r\n" + b'{"amount":1}'
            )
            wait_until_called(service)
        stop_while_it_is_called(gateway, service)
    with forked(*serve, **settings) as gateway:
        again = httpx.post(f"{gateway.url()}/payments/slow", headers=KEY, content=b'{"amount":1}', timeout=PATIENCE)
    assert again.headers["idempotent-replayed"] == "true"
    assert service.calls == 1


def test_a_stop_waits_for_an_attempt_that_nobody_asks_for_any_more(
    redis_url: str, service: SlowPayments, tmp_path: Path
) -> None:
    serve = in_front_of(service, redis_url)
    settings = PATIENT | {"ONCEGATE_NAMESPACE": tmp_path.name, "ONCEGATE_IDEMPOTENCY__RESPONSE_TIMEOUT": "0.2"}
    with forked(*serve, **settings) as gateway:
        assert pay_slowly(gateway.url()).status_code == 504
        wait_until_called(service)
        stop_while_it_is_called(gateway, service)
    with forked(*serve, **settings) as gateway:
        assert pay_slowly(gateway.url()).headers["idempotent-replayed"] == "true"


def test_shutdown_timeout_bounds_a_stop(service: SlowPayments) -> None:
    serve = in_front_of(service)
    with forked(*serve, ONCEGATE_SHUTDOWN_TIMEOUT="0.5") as gateway, ThreadPoolExecutor() as threads:
        pending = threads.submit(pay_slowly, gateway.url())
        wait_until_called(service)
        assert gateway.stop() == 0
        with pytest.raises(httpx.TransportError):
            pending.result()
    assert "Traceback" not in gateway.output


def test_drain_delay_is_unready_and_still_in_front_of(service: SlowPayments) -> None:
    serve = in_front_of(service)
    with forked(*serve, ONCEGATE_DRAIN_DELAY="600") as gateway:
        url = gateway.url()
        assert httpx.get(f"{url}/_oncegate/readyz", timeout=PATIENCE).status_code == 200
        gateway.process.send_signal(signal.SIGTERM)
        gateway.wait_for("stopping")
        ready = httpx.get(f"{url}/_oncegate/readyz", timeout=PATIENCE)
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert httpx.get(f"{url}/payments", timeout=PATIENCE).status_code == 200


def workers_of(gateway: Running) -> list[int]:
    gateway.url(2)
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text()
    return [int(child) for child in children.split()]


def test_a_worker_that_dies_is_replaced(redis_url: str, service: SlowPayments) -> None:
    with forked(*in_front_of(service, redis_url), "--workers", "2") as gateway:
        first, second = workers_of(gateway)
        os.kill(first, signal.SIGKILL)
        gateway.wait_for("starting another")
        url = gateway.url(3)
        assert first not in workers_of(gateway)
        os.kill(second, signal.SIGSTOP)  # a worker that is only paused is nobody's business
        assert httpx.get(f"{url}/payments", timeout=PATIENCE).status_code == 200
        os.kill(second, signal.SIGCONT)
        assert gateway.stop() == 0


def test_a_parent_that_is_stopped_before_it_starts_another_worker_goes_on(
    redis_url: str, service: SlowPayments
) -> None:
    with forked(*in_front_of(service, redis_url), "--workers", "2") as gateway:
        os.kill(workers_of(gateway)[0], signal.SIGKILL)
        gateway.wait_for("starting another")
        gateway.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)  # longer than the pause before it starts one
        gateway.process.send_signal(signal.SIGCONT)
        gateway.url(3)
        assert gateway.stop() == 0


def test_workers_end_with_their_parent(redis_url: str, service: SlowPayments) -> None:
    with forked(*in_front_of(service, redis_url), "--workers", "2") as gateway:
        gateway.url(2)
        gateway.process.kill()
        printed, _ = gateway.process.communicate(
            timeout=PATIENCE
        )  # until the last process that holds the pipe has ended
    assert printed.count("the parent process is gone") == 2


def test_workers_that_cannot_start_are_one_line_and_exit_code_1(service: SlowPayments, tmp_path: Path) -> None:
    """A server that speaks the protocol but is too old to hold the guarantees."""
    with OldRedis(tmp_path / "old.sock") as old:
        serve = [*in_front_of(service, old.url), "--workers", "2"]
        with forked(*serve, ONCEGATE_LOG_LEVEL="error", **PATIENT) as gateway:
            gateway.output, _ = gateway.process.communicate(timeout=PATIENCE)
            assert gateway.process.returncode == 1
    assert gateway.output.startswith("oncegate: cache: ")
    assert gateway.output.count("\n") == 1
