"""A headless Chromium: a script of another origin reads problems, replays and a command's status where ``[cors]`` says so.

And it opens WebSockets. Rules of docs/contract.md: R9.17, R9.24.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx
import pytest

from testing.caller import fresh_key
from testing.chromium import FLAGS
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, bound
from testing.waiting import wait_until
from tests.foreign.conftest import HERE, fetched_or_skipped
from tests.foreign.talking import Talking
from tests.system.conftest import Start


class Page(BaseHTTPRequestHandler):
    """page.html under any path, socket.html under its own, and where they report to."""

    found: "Queue[Any]"

    def do_GET(self) -> None:
        name = "socket.html" if self.path.startswith("/socket") else "page.html"
        self._answer((HERE / name).read_bytes())

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing: it would go to standard error."""


class Site:
    """Serves the page. It has two origins: by its address, and by the name of this machine."""

    def __init__(self, browser: str) -> None:
        self._browser = browser
        self._found: Queue[Any] = Queue()
        handler = type("Handler", (Page,), {"found": self._found})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        port = self._server.server_address[1]
        self.origins = (f"http://127.0.0.1:{port}", f"http://localhost:{port}")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def read(self, origin: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a script of ``origin`` reads of the answers to ``requests``. One without a URL is for the last Location."""
        found: list[dict[str, Any]] = self._open(f"{origin}/?requests={quote(json.dumps(requests))}")
        return found

    def converse(self, origin: str, url: str) -> dict[str, Any]:
        """What came of a WebSocket that a script of ``origin`` has opened to ``url``."""
        found: dict[str, Any] = self._open(f"{origin}/socket?url={quote(url)}")
        return found

    def _open(self, url: str) -> Any:
        """What the page at ``url`` reports."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            running = subprocess.Popen(
                bound(self._browser, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", url),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return self._found.get(timeout=DEADLINE)
            finally:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(fetched_or_skipped("chromium")) as serving:
        yield serving


def allow(ledger: Ledger, origin: str) -> None:
    """Have the upstream answer preflights, and requests under the path ``/payments``, for that origin alone."""
    allowed = (("access-control-allow-origin", origin), ("access-control-expose-headers", "idempotency-key"))
    preflight = (("access-control-allow-origin", "*"), ("access-control-allow-headers", "*, authorization"))
    ledger.answer("", Reply(204, preflight))
    ledger.answer("/payments", Reply(201, (*allowed, ("content-type", "application/json")), b'{"id": 1}'))


def post(gateway: Gateway, key: str, body: str = "a", path: str = "/payments") -> dict[str, Any]:
    return {"url": gateway.url + path, "headers": {"Idempotency-Key": key, "Authorization": "Bearer a"}, "body": body}


def test_without_cors_a_script_sees_no_problem(site: Site, ledger: Ledger, start: Start) -> None:
    gateway = start(ledger.url).ready()
    first, second = site.origins
    allow(ledger, first)
    key = fresh_key()
    done, refused = site.read(first, [post(gateway, key), post(gateway, key, "other")])
    assert done["status"] == 201
    assert refused == {"failed": "TypeError"}
    assert site.read(second, [post(gateway, key)]) == [{"failed": "TypeError"}], "the replay is for the first origin"


def test_with_cors_a_script_reads_what_the_gateway_answers(site: Site, ledger: Ledger, start: Start) -> None:
    gateway = start(ledger.url, cors={"origins": list(site.origins)}, max_in_flight=1).ready()
    first, second = site.origins
    allow(ledger, first)
    key, held = fresh_key(), fresh_key()
    done, again, reused, invalid = site.read(
        first, [post(gateway, key), post(gateway, key), post(gateway, key, "other"), post(gateway, "a,b")]
    )
    assert (done["status"], again["status"]) == (201, 201)
    assert again["body"] == done["body"]
    assert again["fields"]["idempotent-replayed"] == "true"
    assert again["fields"]["cache-status"].startswith("oncegate; hit; ttl=")
    assert (reused["status"], reused["body"]["code"]) == (422, "key-reused")
    assert (invalid["status"], invalid["body"]["code"]) == (400, "key-invalid")
    with ledger.gate() as gate, httpx.Client() as other:
        ledger.answer(held, Reply(gate=gate))
        running = threading.Thread(
            target=other.post,
            args=(gateway.url + "/payments",),
            kwargs={
                "headers": {"Idempotency-Key": held, "Authorization": "Bearer a"},
                "content": b"a",
                "timeout": DEADLINE,
            },
        )
        running.start()
        wait_until(lambda: bool(ledger.arrivals(held)), "the request arrives")
        replay, busy, full = site.read(second, [post(gateway, key), post(gateway, held), post(gateway, fresh_key())])
        gate.open()
        running.join(DEADLINE)
    assert (replay["status"], replay["body"]) == (201, done["body"]), "what is stored names the other origin"
    assert replay["fields"]["idempotent-replayed"] == "true"
    assert (busy["status"], busy["body"]["code"], busy["fields"]["retry-after"]) == (409, "in-flight", "1")
    assert (full["status"], full["body"]["code"], full["fields"]["retry-after"]) == (503, "overloaded", "1")


def test_with_cors_an_origin_that_is_not_named_reads_nothing(site: Site, ledger: Ledger, start: Start) -> None:
    first, second = site.origins
    gateway = start(ledger.url, cors={"origins": [first]}).ready()
    allow(ledger, first)
    key = fresh_key()
    (done,) = site.read(first, [post(gateway, key)])
    assert done["status"] == 201
    assert site.read(second, [post(gateway, key), post(gateway, "a,b")]) == [{"failed": "TypeError"}] * 2


def test_with_cors_a_script_follows_its_command(
    site: Site, ledger: Ledger, start: Start, redis_server: RedisServer
) -> None:
    stream = fresh_key()
    gateway = start(
        ledger.url,
        redis_server.url,
        cors={"origins": list(site.origins)},
        routes=[{"path": "/commands", "mode": "async", "on_missing_key": "reject", "stream": stream}],
    ).ready()
    first, _ = site.origins
    allow(ledger, first)
    accepted, status = site.read(
        first,
        [
            post(gateway, fresh_key(), path="/commands"),
            {"base": gateway.url, "method": "GET", "headers": {"Authorization": "Bearer a"}},
        ],
    )
    assert accepted["status"] == 202
    assert (status["status"], status["body"]["status"]) == (200, "accepted")
    assert status["body"]["command"] == urlsplit(accepted["fields"]["location"]).path.rpartition("/")[2]


def test_a_websocket_of_a_browser_passes(site: Site, start: Start) -> None:
    with Talking() as talking:
        gateway = start(talking.url).ready()
        url = gateway.url.replace("http", "ws", 1) + "/talk?a=%2F"
        first, _ = site.origins
        found = site.converse(first, url)
        assert found.pop("extensions").startswith("permessage-deflate")
        assert found == {
            "protocol": "b",
            "origin": first,
            "received": [True] * 3,
            "code": 4000,
            "reason": "done",
            "wasClean": True,
        }
        assert talking.paths == ["/talk?a=%2F"]


def test_a_websocket_under_enforcement_is_refused_to_a_browser(site: Site, start: Start) -> None:
    with Talking() as talking:
        gateway = start(talking.url, routes=[{"path": "/talk", "methods": ["GET"]}]).ready()
        found = site.converse(site.origins[0], gateway.url.replace("http", "ws", 1) + "/talk")
        assert (found["received"], found["code"], found["wasClean"]) == ([], 1006, False)
        assert talking.paths == []
