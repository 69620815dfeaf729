"""The services of examples/ that stand behind the gateway, killed between a payment and its answer: nothing is paid twice."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import pytest

from testing.gateway import DEADLINE, Gateway
from testing.servers import bound, free_port
from testing.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON_DIES = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import django_payments as example
if {dies}:
    right = example.JsonResponse
    def answer(*given, **more):
        return os.kill(os.getpid(), signal.SIGKILL) if more.get("status") == 201 else right(*given, **more)
    example.JsonResponse = answer
example.main({port})
"""
NODE_DIES = """
import {{ ServerResponse }} from "node:http";
const right = ServerResponse.prototype.writeHead;
ServerResponse.prototype.writeHead = function (status, ...given) {{
  if ({dies} && status === 201) process.kill(process.pid, "SIGKILL");
  return right.call(this, status, ...given);
}};
process.argv[2] = "{port}";
await import("{folder}/node_payments.mjs");
"""


def command(language: str, port: int, *, dies: bool) -> list[str]:
    """Starts an example whose process, if it ``dies``, is killed when a payment is made and not yet answered."""
    given: dict[str, Any] = {"folder": str(EXAMPLES), "port": port}
    if language == "django":
        return [sys.executable, "-c", PYTHON_DIES.format(dies=dies, **given)]
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not there")
    return [node, "--input-type=module", "--eval", NODE_DIES.format(dies=str(dies).lower(), **given)]


@contextmanager
def served(language: str, port: int, folder: Path, *, dies: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """The example as a process, which answers."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(bound(*command(language, port, dies=dies)), cwd=folder, stdout=log, stderr=log)

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/payments", timeout=DEADLINE).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(answers, "the example answers")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("language", ["django", "node"])
def test_a_payment_whose_service_dies_before_it_answers_is_made_once(language: str, tmp_path: Path) -> None:
    port = free_port()
    gateway = Gateway(tmp_path / "gateway.log", f"http://127.0.0.1:{port}", idempotency={"on_unknown": "retry"})

    def pay(key: str, caller: str = "alice", amount: int = 30) -> httpx.Response:
        headers = {"Idempotency-Key": key, "Authorization": caller}
        url = f"{gateway.url}/payments"
        return httpx.post(url, json={"amount": amount}, headers=headers, timeout=DEADLINE)

    try:
        with served(language, port, tmp_path, dies=True) as process:
            gateway.ready()
            cut = pay("order-1")
            assert (cut.status_code, cut.json()["retryable"]) == (502, True)
            assert process.wait(DEADLINE) == -SIGKILL
        with served(language, port, tmp_path):
            retry, again = pay("order-1"), pay("order-1")
            assert (retry.status_code, retry.json()) == (201, {"id": 1, "amount": 30})
            assert again.headers["idempotent-replayed"] == "true"
            assert pay("order-1", "bob").json()["id"] == 2, "another caller's key is another one"
            assert pay("order-1", amount=31).status_code == 422
            assert httpx.post(f"{gateway.url}/payments", json={"amount": 1}, timeout=DEADLINE).status_code == 400
            wrong = httpx.post(
                f"{gateway.url}/payments", content=b"{", headers={"Idempotency-Key": "w"}, timeout=DEADLINE
            )
            assert wrong.status_code == 400
            assert len(httpx.get(f"{gateway.url}/payments", timeout=DEADLINE).json()) == 2
        with served(language, port, tmp_path):
            assert len(httpx.get(f"{gateway.url}/payments", timeout=DEADLINE).json()) == 2, "it is on disk"
    finally:
        gateway.end()


@pytest.mark.parametrize(("example", "needs"), [("django_payments", "django"), ("celery_payments", "celery")])
def test_without_what_it_needs_it_says_in_one_line_what_to_install(example: str, needs: str) -> None:
    program = f"import sys; sys.modules[{needs!r}] = None; import {example}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=EXAMPLES, capture_output=True, text=True, env={**os.environ, "BROKER": ""}
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"pip install {needs}" in done.stderr
