"""The clients of docs/clients.md, as they stand there: an answer that is lost, a try that is still running, what nobody knows."""

import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.pages import BLOCK
from testing.proxy import BreakingProxy
from testing.waiting import wait_until
from tests.foreign.conftest import ROOT, decided, fetched

FILE = re.compile(r"// ([\w.]+)\n")
BLOCKS = {
    found[1]: block
    for _, block in BLOCK.findall((ROOT / "docs/clients.md").read_text("utf-8"))
    if (found := FILE.match(block))
}
IN_NODE = """
import {{ send }} from "{folder}/pay.mjs";
const [url, key, body] = process.argv.slice(-3);
const {{ status, body: text }} = await send(url, key, body);
console.log(`${{status}} ${{text}}`);
"""

pytestmark = pytest.mark.timeout(600)
Pay = Callable[[str, str, str], tuple[int, str]]
"""Sends the body under the key to the URL; the status and the body that its caller gets in the end."""


def installed(tool: str) -> str:
    """Where ``tool`` is. Skips the test where it isn't."""
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"{tool} is not there")
    return path


GO_CACHE = ROOT / ".cache/go"
"""Shared by runs: the first one compiles Go's own library, for two minutes."""


def command(language: str, folder: Path) -> list[str | Path]:
    """What runs the page's client."""
    if language == "js":
        program = folder / "run.mjs"
        program.write_text(IN_NODE.format(folder=folder))
        return [installed("node"), program]
    if language == "java":
        java = fetched("java")
        compile_it: list[str | Path] = [
            java,
            "-m",
            "jdk.compiler/com.sun.tools.javac.Main",
            "-d",
            folder,
            folder / "Pay.java",
        ]
        subprocess.run(compile_it, check=True, timeout=300)
        return [java, "-XX:TieredStopAtLevel=1", "-cp", folder, "Pay"]
    built = folder / "pay"
    environment = {
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
        "GOCACHE": str(GO_CACHE),
    }
    subprocess.run([installed("go"), "build", "-o", built, folder / "pay.go"], check=True, env=environment, timeout=300)
    return [built]


@pytest.fixture(scope="module", params=["js", "java", "go"])
def pay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pay:
    folder = tmp_path_factory.mktemp(request.param)
    for name, block in BLOCKS.items():
        (folder / name).write_text(block)
    start = command(request.param, folder)

    def run(url: str, key: str, body: str) -> tuple[int, str]:
        done = subprocess.run([*start, url, key, body], capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        status, _, text = done.stdout.strip().partition(" ")
        return int(status), text

    return run


def test_the_page_has_a_client_for_each() -> None:
    assert set(BLOCKS) == {"pay.mjs", "Pay.java", "pay.go"}


def test_where_the_answer_is_lost_it_gets_the_same_one_and_nothing_is_executed_again(
    pay: Pay, gateway: Gateway, ledger: Ledger
) -> None:
    key = fresh_key()
    with BreakingProxy(httpx.URL(gateway.url).port or 0) as proxy:
        proxy.watch(key.encode(), "cut")
        status, text = pay(f"http://127.0.0.1:{proxy.port}/payments", key, '{"amount": 1}')
        assert status == 201
        assert b" 201 " in proxy.lost
        assert text.encode() in proxy.lost
    (arrival,) = ledger.arrivals(key)
    assert arrival.body == b'{"amount": 1}'


def test_it_waits_for_a_try_that_is_still_running(pay: Pay, gateway: Gateway, ledger: Ledger) -> None:
    key = fresh_key()
    with ThreadPoolExecutor(2) as threads, ledger.gate() as gate:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        both = [threads.submit(pay, f"{gateway.url}/payments", key, "{}") for _ in range(2)]
        wait_until(lambda: ledger.arrivals(key), "one of them is executed")
        gate.open()
        first, second = [each.result(DEADLINE) for each in both]
    assert first == second
    assert first[0] == 201
    assert len(ledger.arrivals(key)) == 1


def test_what_nobody_knows_is_not_sent_again_and_again(pay: Pay, gateway: Gateway, ledger: Ledger) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(cut="before-head"))
    status, text = pay(f"{gateway.url}/payments", key, "{}")
    assert status == 502
    before = decided(gateway, "outcome-unknown")
    status, text = pay(f"{gateway.url}/payments", key, "{}")
    assert (status, '"code":"outcome-unknown"' in text) == (409, True)
    assert decided(gateway, "outcome-unknown") == before + 1
    assert len(ledger.arrivals(key)) == 1


def test_another_payload_under_the_key_is_an_outcome(pay: Pay, gateway: Gateway, ledger: Ledger) -> None:
    key, before = fresh_key(), decided(gateway, "key-reused")
    assert pay(f"{gateway.url}/payments", key, '{"amount": 1}')[0] == 201
    assert pay(f"{gateway.url}/payments", key, '{"amount": 2}')[0] == 422
    assert decided(gateway, "key-reused") == before + 1
