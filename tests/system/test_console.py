"""A session of the console in a gateway of several processes: each of them takes it, and a log-out ends it in all.

Rules of docs/contract.md: R11.51.
"""

import re

import httpx

from oncegate.app.settings.admin_tokens import AdminToken
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger
from testing.servers import RedisServer
from tests.system.conftest import Start

TOKEN = "oncegate-a-token-that-changes"
COOKIE = "oncegate-session"
TRIES = 40
"""Connections of their own, so that each worker gets some."""


def open_page(gateway: Gateway, cookie: str, path: str = "") -> tuple[int, str]:
    """The status of a page, of the first one without a ``path``, and the page, by a connection of its own."""
    answer = httpx.get(
        f"{gateway.url}/_oncegate/console{path}", headers={"cookie": f"{COOKIE}={cookie}"}, timeout=DEADLINE
    )
    return answer.status_code, answer.text


def post(gateway: Gateway, path: str, cookie: str, **form: str) -> httpx.Response:
    headers = {"cookie": f"{COOKIE}={cookie}"}
    return httpx.post(f"{gateway.url}/_oncegate/console{path}", headers=headers, data=form, timeout=DEADLINE)


def form_token(page: str) -> str:
    found = re.search(r'name="form" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


def log_in(gateway: Gateway) -> str:
    first = httpx.get(f"{gateway.url}/_oncegate/console", timeout=DEADLINE)
    done = post(gateway, "/log-in", first.cookies[COOKIE], form=form_token(first.text), token=TOKEN)
    assert done.status_code == 303
    return done.cookies[COOKIE]


def test_each_worker_takes_a_session_and_a_log_out_ends_it_in_all(
    start: Start, ledger: Ledger, redis_server: RedisServer
) -> None:
    tokens = [AdminToken.of("will", TOKEN).setting()]
    gateway = start(ledger.url, redis_server.url, workers=3, admin_tokens=tokens).ready()
    cookie = log_in(gateway)
    pages = [open_page(gateway, cookie) for _ in range(TRIES)]
    assert {status for status, _ in pages} == {200}
    assert post(gateway, "/log-out", cookie, form=form_token(pages[0][1])).status_code == 303
    assert {open_page(gateway, cookie)[0] for _ in range(TRIES)} == {401}


def test_gateways_take_each_other_s_sessions_by_their_secret_alone(
    start: Start, ledger: Ledger, redis_server: RedisServer
) -> None:
    tokens = [AdminToken.of("will", TOKEN).setting()]
    for secret, status in (("s" * 32, 200), ("", 401)):
        given = {"admin_tokens": tokens, "namespace": f"console{status}"} | ({"secret": secret} if secret else {})
        one, other = (start(ledger.url, redis_server.url, **given).ready() for _ in range(2))
        cookie = log_in(one)
        assert open_page(one, cookie)[0] == 200
        assert open_page(other, cookie)[0] == status
