"""The page's server over HTTP: for this machine, its own name and its own origin alone.

Rules of docs/contract.md: R10.26.
"""

import http.client
import json
import re
import threading
from collections.abc import Iterator
from importlib.resources import files

import httpx
import pytest

from testing.command_line import PATIENCE
from testing.waiting import wait_until
from tests.app.demo.conftest import Demo, Demos

PATHS = [
    ("GET", "/"),
    ("GET", "/events"),
    ("GET", "/demo.js"),
    ("POST", "/actions/pay"),
    ("POST", "/faults/gateway-dies"),
]


@pytest.fixture(scope="module")
def demo(demos: Demos, without_redis: str) -> Iterator[Demo]:
    with demos(without_redis) as demo:
        yield demo
        demo.stop()


def request(demo: Demo, method: str, path: str, **headers: str) -> httpx.Response:
    return httpx.request(method, demo.page + path, headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1.rebound.example:{port}"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_other_names_and_other_origins_are_refused(demo: Demo, method: str, path: str, headers: dict[str, str]) -> None:
    port = demo.page.rpartition(":")[2]
    before = demo.books()["arrived"]
    refused = request(demo, method, path, **{name: value.format(port=port) for name, value in headers.items()})
    assert refused.status_code == 403
    assert refused.text.count("\n") == 1
    assert demo.books()["arrived"] == before


def test_two_names_at_once_are_refused(demo: Demo) -> None:
    connection = http.client.HTTPConnection(demo.page.removeprefix("http://"), timeout=PATIENCE)
    connection.putrequest("GET", "/", skip_host=True)
    for host in (demo.page.removeprefix("http://"), "rebound.example"):
        connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)
    connection.close()


def test_its_own_origin_and_name_are_taken(demo: Demo) -> None:
    port = demo.page.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        headers = {"Host": f"{host}:{port}", "Origin": f"http://{host}:{port}", "Sec-Fetch-Site": "same-origin"}
        done = request(demo, "POST", "/actions/pay", **headers)
        assert (done.status_code, done.headers["location"]) == (303, "/")


@pytest.mark.parametrize("path", ["/", "/demo.js", "/demo.css", "/nothing"])
def test_no_page_runs_what_is_not_its_own(demo: Demo, path: str) -> None:
    answer = request(demo, "GET", path)
    policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(demo: Demo) -> None:
    html = request(demo, "GET", "/").text
    assert re.findall(r"<script[^>]*>", html) == ['<script src="/demo.js" defer>']
    assert re.findall(r"<style|\sstyle=|\son\w+=", html) == []
    assert set(re.findall(r'(?:src|href|action)="([^"]*)"', html)) - {"data:,"} <= {
        "/demo.css",
        "/demo.js",
        *re.findall(r'action="(/actions/[a-z-]+)"', html),
    }


def test_its_own_script_is_small() -> None:
    script = (files("oncegate.app.demo.page") / "static" / "demo.js").read_bytes()
    assert 0 < len(script) < 10_000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/actions/nothing", 404),
        ("POST", "/actions/", 404),
        ("POST", "/faults/../../x", 404),
        ("POST", "/faults/redis-dies", 404),
        ("POST", "/actions/redis-away", 409),
        ("DELETE", "/", 405),
    ],
)
def test_what_is_not_there_is_one_line(demo: Demo, method: str, path: str, status: int) -> None:
    answer = request(demo, method, path)
    assert answer.status_code == status
    assert answer.text.count("\n") == 1


def test_one_action_at_a_time(demo: Demo) -> None:
    with httpx.Client(timeout=PATIENCE) as client, client.stream("GET", f"{demo.page}/events") as events:
        lines = events.iter_lines()
        running = threading.Thread(target=request, args=(demo, "POST", "/actions/pay-twice"))
        running.start()
        for line in lines:
            if line.startswith("data: ") and "under way" in json.loads(line.removeprefix("data: ")).get("outcome", ""):
                break
        refused = request(demo, "POST", "/actions/pay")
        running.join()
    assert (refused.status_code, refused.text) == (409, "another one is under way: wait for its end\n")


def test_pages_that_follow_are_bounded_and_let_go(demo: Demo) -> None:
    from oncegate.app.demo.page.control import MOST_FOLLOWERS

    clients = [httpx.Client(timeout=PATIENCE) for _ in range(MOST_FOLLOWERS)]
    streams = [client.stream("GET", f"{demo.page}/events") for client in clients]
    opened = [stream.__enter__() for stream in streams]
    assert {answer.status_code for answer in opened} == {200}
    assert request(demo, "GET", "/events").status_code == 503
    for client, answer in zip(clients, opened, strict=True):
        answer.close()
        client.close()

    def can_follow() -> bool:
        with httpx.stream("GET", f"{demo.page}/events", timeout=PATIENCE) as one:
            return one.status_code == 200

    wait_until(can_follow, "those who have gone count no more")
