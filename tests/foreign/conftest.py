"""Clients that nobody here wrote, in front of a real gateway: SDKs, retry layers, a browser, Java's own client, curl.

What they need is fetched by a script of the same name; where that can't be, their tests are skipped, and say why.
"""

import json
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.fetching import NotFetchedError, fetched
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger
from tests.system.conftest import Start, starting

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ROUTES: list[dict[str, Any]] = [
    {"path": "/v1/customers", "scope": ["header:X-Account"], "require_scope": True},
    {"path": "/v1/products", "raise_on_duplicate": True},
    {"path": "/v1/refunds", "on_unknown": "retry"},
    {"path": "/v1/tokens", "max_request_body": 10},
]
"""The paths are those of a service whose SDKs come."""


def fetched_or_skipped(script: str) -> str:
    """What ``scripts/SCRIPT`` prints: where it is. Skips the test where it is not to be had."""
    try:
        return fetched(script)
    except NotFetchedError as error:
        pytest.skip(str(error))


def decided(gateway: Gateway, decision: str) -> int:
    """How many requests the gateway has answered by ``decision``, a decision or a problem's slug."""
    lines = httpx.get(f"{gateway.url}/_oncegate/metrics", timeout=DEADLINE).text.splitlines()
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if line.startswith("oncegate_requests_total{") and f'decision="{decision}"' in line
    )


class Node:
    """Runs the programs of this folder, with the packages of package.json."""

    def __init__(self, packages: str) -> None:
        self._packages = Path(packages)

    def start(self, program: Path | str, **given: Any) -> "subprocess.Popen[str]":
        """``program``, a file of this folder or a text, with ``given`` in its variable GIVEN, as JSON."""
        text = program if isinstance(program, str) else program.read_text("utf-8")
        return subprocess.Popen(  # modules are looked for from where the program is, which a text has in the working folder
            ["node", "--input-type=module", "--eval", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._packages,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIVEN": json.dumps(given)},
        )

    def run(self, program: Path | str, **given: Any) -> Any:
        """What it printed, as JSON."""
        return self.end(self.start(program, **given))

    def end(self, running: "subprocess.Popen[str]") -> Any:
        """What it has printed by its end."""
        with running:
            printed, _ = running.communicate(timeout=DEADLINE)
        assert running.returncode == 0
        return json.loads(printed)


@pytest.fixture(scope="session")
def node() -> Node:
    return Node(fetched_or_skipped("node-clients"))


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    with Ledger() as running:
        yield running


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts gateways that end with the module. Not awaited: `Gateway.ready` does that."""
    logs, numbers = tmp_path_factory.mktemp("gateways"), count(1)
    with starting(lambda: logs / f"{next(numbers)}.log") as start_one:
        yield start_one


@pytest.fixture(scope="module")
def gateway(start: Start, ledger: Ledger) -> Gateway:
    """One in front of the ledger, on the embedded cache."""
    return start(ledger.url, routes=ROUTES).ready()
