"""The API's own description and page, and when the framework behind them is loaded.

Rules of docs/contract.md: R11.8, R11.20.
"""

import asyncio
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser

import pytest

from oncegate.app.operators.pages.api import create_app
from oncegate.app.operators.pages.operations import Operations
from oncegate.app.operators.readiness import Readiness
from oncegate.cache.memory.store import MemoryCache
from testing.asgi_client import Client
from testing.served import served
from testing.servers import free_port
from tests.app.described import DESCRIPTION

PREFIX = "/_oncegate"


class Addresses(HTMLParser):
    """What a page leads to or loads, and which elements it has."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcset", "data")]


async def test_the_page_names_every_operation_and_loads_nothing() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        page = await client.get(f"{PREFIX}/docs")
        head = await client.head(f"{PREFIX}/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(page.content)))
    for path, item in DESCRIPTION["paths"].items():
        for method, operation in item.items():
            assert f"<code>{method.upper()} {path}</code>" in page.text
            assert operation["operationId"]
    addresses = Addresses()
    addresses.feed(page.text)
    assert addresses.found == ["openapi.json"]
    assert addresses.tags.isdisjoint({"script", "link", "img", "iframe", "form"})
    assert not re.search(r"url\(|@import", page.text)


async def test_the_description_is_served_as_it_is_checked_in() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        assert (await client.get(f"{PREFIX}/openapi.json")).json() == DESCRIPTION
        for elsewhere in ("/redoc", "/docs/oauth2-redirect"):
            assert (await client.get(PREFIX + elsewhere)).status_code == 404


async def test_with_a_port_of_the_operators_both_are_there_alone() -> None:
    async with served(f"http://127.0.0.1:{free_port()}", ops_port=65000, public=[]) as (client, _):
        for name in ("docs", "openapi.json"):
            assert (await client.get(f"{PREFIX}/{name}")).status_code == 404


@pytest.mark.parametrize("path", [b"/_oncegate/healthz", b"/_oncegate/readyz", b"/_oncegate/healthz/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_probes_do_not_wait_for_the_framework_and_get_the_same_answer_with_it(path: bytes, method: str) -> None:
    may_load = threading.Event()
    readiness = Readiness(probe=_reached, cache=MemoryCache())

    def create() -> object:
        may_load.wait()
        return create_app(readiness=readiness, metrics=lambda _: (b"", ""), policy=lambda: b"")

    operations = Operations(PREFIX, readiness, create)  # type: ignore[arg-type]  # an app, once it may
    loading = asyncio.create_task(operations.load())
    try:
        before = await Client(method, path).call(operations)
    finally:
        may_load.set()
    await loading
    after = await Client(method, path).call(operations)
    assert (before.status, before.body) == (after.status, after.body)
    assert [line for line in before.headers if line[0] != b"date"] == [
        line for line in after.headers if line[0] != b"date"
    ]


async def test_the_framework_is_loaded_once_for_many_who_wait() -> None:
    made: list[None] = []
    readiness = Readiness(probe=_reached, cache=MemoryCache())

    def create() -> object:
        made.append(None)
        return create_app(readiness=readiness, metrics=lambda _: (b"# EOF", "text/plain"), policy=lambda: b"{}")

    operations = Operations(PREFIX, readiness, create)  # type: ignore[arg-type]  # an app
    first, *others = [asyncio.create_task(Client("GET", b"/_oncegate/policy").call(operations)) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()  # its client gave up: the others still get the answer
    assert [client.body for client in await asyncio.gather(*others)] == [b"{}"] * 4
    assert len(made) == 1


async def _reached() -> None: ...


def test_nobody_but_a_gateway_that_serves_loads_the_framework() -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "import oncegate, oncegate.app.cli, oncegate.app.work, oncegate.app.serve, oncegate.app.commands.worker\n"
        "for name in oncegate.__all__: getattr(oncegate, name)\n"
        "for each in pkgutil.walk_packages(oncegate.app.cli.__path__, 'oncegate.app.cli.'): importlib.import_module(each.name)\n"
        "from oncegate.app.factory import create_gateway\n"
        "from oncegate.app.settings.gateway import GatewaySettings\n"
        "create_gateway(GatewaySettings(upstream='http://127.0.0.1:9'), admin_token='t')\n"
        "print([name for name in ('fastapi', 'starlette') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
