"""Stopping, and what several workers do: real processes, a real Redis, a payments service that takes its time."""

import os
import signal
import socket
import socketserver
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Thread
from typing import Self

import hiredis
import httpx
import pytest

from oncegate.app.demo_upstream import Payments, PaymentsServer
from tests.app.cli import Running, running

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


class SlowPayments:
    """`Payments` whose slow requests take as long as the test wants."""

    def __init__(self) -> None:
        self.answered = Event()
        self.payments = Payments(lambda line: self.answered.set(), slow_seconds=1.0)


@pytest.fixture
def slow() -> Iterator[tuple[SlowPayments, str]]:
    service = SlowPayments()
    with PaymentsServer(service.payments) as server:
        yield service, server.url


def pay_slowly(url: str) -> httpx.Response:
    return httpx.post(f"{url}/payments/slow", headers=KEY, json={"amount": 1}, timeout=20)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_finishes_the_request_in_flight(
    workers: int, redis_url: str, slow: tuple[SlowPayments, str], tmp_path: Path
) -> None:
    service, upstream = slow
    serve = ["serve", "--upstream", upstream, "--cache", redis_url, "--port", "0", "--workers", str(workers)]
    with running(*serve, ONCEGATE_NAMESPACE=tmp_path.name) as gateway, ThreadPoolExecutor() as threads:
        url = gateway.url(workers)
        pending = threads.submit(pay_slowly, url)
        wait_until_called(service)
        gateway.process.send_signal(signal.SIGTERM)
        until_refused(url, pending)
        assert pending.result().status_code == 201
        assert gateway.stop() == 0
    assert "Traceback" not in gateway.said
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def until_refused(url: str, pending: "Future[httpx.Response]") -> None:
    """A connection that is taken and not served would be worse than none: nobody may listen while requests end."""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    while not wait([pending], timeout=0.02).done:
        try:
            socket.create_connection(address, timeout=5).close()
        except ConnectionRefusedError:
            break
        except ConnectionResetError:
            continue  # it was closing at that moment
    assert not pending.done(), "the port stayed open until the end"


def wait_until_called(service: SlowPayments) -> None:
    while not service.payments.calls:
        service.answered.wait(0.01)


def test_a_stop_records_the_attempt_of_a_client_that_has_left(
    redis_url: str, slow: tuple[SlowPayments, str], tmp_path: Path
) -> None:
    service, upstream = slow
    serve = ["serve", "--upstream", upstream, "--cache", redis_url, "--port", "0"]
    with running(*serve, ONCEGATE_NAMESPACE=tmp_path.name) as gateway:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{gateway.url()}/payments/slow", headers=KEY, json={"amount": 1}, timeout=0.3)
        assert gateway.stop() == 0
        assert service.answered.is_set()
    with running(*serve, ONCEGATE_NAMESPACE=tmp_path.name) as gateway:
        again = httpx.post(f"{gateway.url()}/payments/slow", headers=KEY, json={"amount": 1})
    assert again.headers["idempotent-replayed"] == "true"
    assert service.payments.calls == 1


def test_a_stop_waits_for_an_attempt_that_nobody_asks_for_any_more(
    redis_url: str, slow: tuple[SlowPayments, str], tmp_path: Path
) -> None:
    service, upstream = slow
    serve = ["serve", "--upstream", upstream, "--cache", redis_url, "--port", "0"]
    settings = {"ONCEGATE_NAMESPACE": tmp_path.name, "ONCEGATE_IDEMPOTENCY__RESPONSE_TIMEOUT": "0.2"}
    with running(*serve, **settings) as gateway:
        assert pay_slowly(gateway.url()).status_code == 504
        assert gateway.stop() == 0
        assert service.answered.is_set()
    with running(*serve, **settings) as gateway:
        assert pay_slowly(gateway.url()).headers["idempotent-replayed"] == "true"


def test_shutdown_timeout_bounds_a_stop(slow: tuple[SlowPayments, str]) -> None:
    service, _ = slow
    endless = Payments(lambda line: None, slow_seconds=60.0)
    with PaymentsServer(endless) as server:
        serve = ["serve", "--upstream", server.url, "--port", "0"]
        with running(*serve, ONCEGATE_SHUTDOWN_TIMEOUT="0.5") as gateway, ThreadPoolExecutor() as threads:
            pending = threads.submit(pay_slowly, gateway.url())
            while not endless.calls:
                service.answered.wait(0.01)
            assert gateway.stop() == 0
            with pytest.raises(httpx.TransportError):
                pending.result()
    assert "Traceback" not in gateway.said


def test_drain_delay_is_unready_and_still_serving(slow: tuple[SlowPayments, str]) -> None:
    _, upstream = slow
    serve = ["serve", "--upstream", upstream, "--port", "0"]
    with running(*serve, ONCEGATE_DRAIN_DELAY="60") as gateway:
        url = gateway.url()
        assert httpx.get(f"{url}/_oncegate/readyz").status_code == 200
        gateway.process.send_signal(signal.SIGTERM)
        gateway.wait_for("stopping")
        ready = httpx.get(f"{url}/_oncegate/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        assert httpx.get(f"{url}/payments").status_code == 200


def workers_of(gateway: Running) -> list[int]:
    gateway.url(2)
    children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text()
    return [int(child) for child in children.split()]


def test_a_worker_that_dies_is_replaced(redis_url: str, slow: tuple[SlowPayments, str]) -> None:
    with running("serve", "--upstream", slow[1], "--cache", redis_url, "--port", "0", "--workers", "2") as gateway:
        first, second = workers_of(gateway)
        os.kill(first, signal.SIGKILL)
        gateway.wait_for("starting another")
        url = gateway.url(3)
        assert first not in workers_of(gateway)
        os.kill(second, signal.SIGSTOP)  # a worker that is only paused is nobody's business
        assert httpx.get(f"{url}/payments", timeout=20).status_code == 200
        os.kill(second, signal.SIGCONT)
        assert gateway.stop() == 0


def test_workers_end_with_their_parent(redis_url: str, slow: tuple[SlowPayments, str]) -> None:
    with running("serve", "--upstream", slow[1], "--cache", redis_url, "--port", "0", "--workers", "2") as gateway:
        gateway.url(2)
        gateway.process.kill()
        said, _ = gateway.process.communicate(timeout=20)  # until the last process that holds the pipe has ended
    assert said.count("the parent process is gone") == 2


def test_workers_that_cannot_start_are_one_line_and_exit_code_1(slow: tuple[SlowPayments, str], tmp_path: Path) -> None:
    """A server that speaks the protocol but is too old to hold the guarantees."""
    with OldRedis(tmp_path / "old.sock") as old:
        serve = ["serve", "--upstream", slow[1], "--cache", old.url, "--port", "0", "--workers", "2"]
        with running(*serve, ONCEGATE_LOG_LEVEL="error") as gateway:
            gateway.said, _ = gateway.process.communicate(timeout=20)
            assert gateway.process.returncode == 1
    assert gateway.said.startswith("oncegate: cache: ")
    assert gateway.said.count("\n") == 1
