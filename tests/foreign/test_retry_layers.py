"""Retry layers, set up as docs/problems.md says: they wait for what is in flight, and spend nothing on what stays unknown."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from testing.caller import fresh_key
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.pages import BLOCK
from testing.waiting import wait_until
from tests.foreign.conftest import ROOT, Node, decided

Post = Callable[[str, str], int]
"""Posts to the URL under the key; the status that its caller gets in the end."""


def example(word: str) -> str:
    """The block of the page that has ``word`` in it."""
    page = (ROOT / "docs/problems.md").read_text("utf-8")
    (found,) = [block for _, block in BLOCK.findall(page) if word in block]
    return str(found)


_GIVEN = "const { url, headers } = JSON.parse(process.env.GIVEN);\n"
PROGRAM = {
    "axios": _GIVEN
    + """
      const status = await client.post(url, "a", { headers }).then((answer) => answer.status, (error) => error.response.status);
      process.stdout.write(JSON.stringify(status), () => process.exit());
    """,
    "got": _GIVEN
    + """
      const send = client.post(url, { body: "a", headers });
      const status = await send.then((answer) => answer.statusCode, (error) => error.response.statusCode);
      process.stdout.write(JSON.stringify(status), () => process.exit());
    """,
}


@pytest.fixture(params=["axios", "got", "urllib3"])
def post(request: pytest.FixtureRequest) -> Post:
    if request.param == "urllib3":
        return with_urllib3
    node: Node = request.getfixturevalue("node")
    name: str = request.param
    program = example(f'from "{name}"') + PROGRAM[name]

    def run(url: str, key: str) -> int:
        status: int = node.run(program, url=url, headers={"Idempotency-Key": key})
        return status

    return run


def with_urllib3(url: str, key: str) -> int:
    made: dict[str, Any] = {}
    exec(example("urllib3"), made)
    with made["http"] as http:
        status: int = http.request("POST", url, body=b"a", headers={"Idempotency-Key": key}).status
    return status


def test_it_waits_for_a_request_in_flight(post: Post, ledger: Ledger, gateway: Gateway) -> None:
    key, before = fresh_key(), decided(gateway, "in-flight")
    with ThreadPoolExecutor(2) as threads, ledger.gate() as gate:
        ledger.answer(key, Reply(gate=gate), Reply(500))
        both = [threads.submit(post, f"{gateway.url}/payments", key) for _ in range(2)]
        wait_until(lambda: decided(gateway, "in-flight") > before, "one of them has met the other in flight")
        gate.open()
        assert [each.result(DEADLINE) for each in both] == [201, 201]
    assert len(ledger.arrivals(key)) == 1


def test_it_asks_once_about_an_unknown_outcome(post: Post, ledger: Ledger, gateway: Gateway) -> None:
    key = fresh_key()
    ledger.answer(key, Reply(504))  # the upstream's own: it passes, and what became of the request nobody knows
    url = f"{gateway.url}/payments"
    assert httpx.post(url, content=b"a", headers={"Idempotency-Key": key}, timeout=DEADLINE).status_code == 504
    before = decided(gateway, "outcome-unknown")
    assert post(url, key) == 409
    assert decided(gateway, "outcome-unknown") == before + 1
    assert len(ledger.arrivals(key)) == 1
