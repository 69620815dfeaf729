"""The access log of real processes: a whole line for each request, also at a stop; and in no line, nor in the log, a secret.

Rules of docs/contract.md: R4.37, R6.9, R11.30, R11.31, R11.32.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.caller import BODY_MARK, CALLER_MARK, KEY_MARK, Caller, fresh_key
from testing.command_line import forked
from testing.gateway import DEADLINE
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import UNHURRIED, Start
from tests.system.logs import events

QUERY_MARK = "query-value-"
COOKIE_MARK = "cookie-of-"
ANSWER_MARK = "answer-says-"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines, all of them whole."""
    written = path.read_bytes()
    assert not written or written.endswith(b"\n")
    return [json.loads(line) for line in written.splitlines()]


async def test_several_workers_write_a_whole_line_for_each_request(
    tmp_path: Path, ledger: Ledger, redis_server: RedisServer, start: Start, caller: Caller
) -> None:
    path = tmp_path / "access.log"
    gateway = start(
        ledger.url, redis_server.url, workers=3, access_log="json", access_log_file=str(path), cache_timeout=UNHURRIED
    ).ready()
    number = 150
    for _ in range(2):
        keys = [fresh_key() for _ in range(number)]
        posts = [caller.post(gateway, key, headers={"x-request-id": f"p-{n}"}) for n, key in enumerate(keys)]
        gets = [caller.get(gateway, f"/payments/{n}") for n in range(number)]
        assert {answer.status_code for answer in await asyncio.gather(*posts, *gets)} <= {200, 201}
    async with caller.held(ledger, gateway, fresh_key(), "/held") as (under_way, gate):
        gateway.terminate()
        await until(lambda: "stopping" in gateway.text())
        gate.open()
        answer = await under_way
    assert gateway.exit_code() == 0
    lines = [line for line in lines_of(path) if line["decision"] != "operations"]
    assert len(lines) == 4 * number + 1
    assert Counter(line["decision"] for line in lines) == {"first": 2 * number + 1, "pass": 2 * number}
    assert lines[-1]["request_id"] == answer.headers["x-request-id"], "what ends at the stop has its line, too"
    ids = [line["request_id"] for line in lines if not line["request_id"].startswith("p-")]
    assert len(set(ids)) == len(ids), "ids of several processes are never the same"
    assert len({line["record"] for line in lines if line["record"]}) == 2 * number + 1


async def test_what_a_stop_does_not_wait_for_any_longer_has_a_line(
    tmp_path: Path, ledger: Ledger, start: Start, caller: Caller
) -> None:
    path = tmp_path / "access.log"
    gateway = start(ledger.url, access_log="json", access_log_file=str(path), shutdown_timeout=0.5).ready()
    async with caller.held(ledger, gateway, fresh_key(), "/held") as (under_way, _):
        gateway.terminate()
        with pytest.raises(httpx.TransportError):
            await under_way
        assert await asyncio.to_thread(gateway.exit_code) == 0
    line = lines_of(path)[-1]
    assert (line["path"], line["status"], line["ended"]) == ("/held", 499, "client-left")


def test_without_a_file_it_is_on_standard_output(ledger: Ledger) -> None:
    options = {"ONCEGATE_ACCESS_LOG": "json", "ONCEGATE_LOG_FORMAT": "text"}
    with forked("serve", "--upstream", ledger.url, "--port", "0", **options) as running:
        httpx.get(running.url() + "/shown", timeout=DEADLINE)
        line = json.loads(running.wait_for(r"\{.*/shown.*\}")[0])
        assert (line["path"], line["decision"]) == ("/shown", "pass")
        assert running.stop() == 0


def test_a_file_that_can_not_be_opened_stops_the_start(tmp_path: Path, ledger: Ledger) -> None:
    options = {"ONCEGATE_ACCESS_LOG": "json", "ONCEGATE_ACCESS_LOG_FILE": str(tmp_path / "absent" / "log")}
    with forked("serve", "--upstream", ledger.url, "--port", "0", **options) as running:
        assert running.process.wait(DEADLINE) == 2
        assert running.process.stdout is not None
        assert (
            running.process.stdout.read() == "oncegate: access_log_file: can't be opened: No such file or directory\n"
        )


@pytest.mark.parametrize("form", ["json", "combined"])
async def test_no_line_has_a_key_a_credential_a_body_or_a_query(
    tmp_path: Path, ledger: Ledger, start: Start, caller: Caller, form: str
) -> None:
    path = tmp_path / "access.log"
    gateway = start(
        ledger.url,
        access_log=form,
        access_log_file=str(path),
        idempotency={"aliases": ["X-Payment-Key"], "response_timeout": 1},
        routes=[{"path": "/scoped/*", "scope": ["header:X-Tenant"], "require_scope": True}],
    ).ready()
    headers = {
        "cookie": f"session={COOKIE_MARK}alice",
        "referer": f"https://{CALLER_MARK}user:{CALLER_MARK}word@shop.example/?{QUERY_MARK}=1#{QUERY_MARK}",
        "user-agent": "tests",
        "x-tenant": f"{CALLER_MARK}tenant",
    }
    query = f"?token={QUERY_MARK}1&amount={QUERY_MARK}2"
    answers = []
    for _ in range(2):
        key = fresh_key()
        answer = ANSWER_MARK.encode() + b"yes"
        ledger.answer(
            key, Reply(body=answer, headers=(("set-cookie", f"{COOKIE_MARK}new=1"), ("x-secret", ANSWER_MARK)))
        )
        bodies = [BODY_MARK + b"one", BODY_MARK + b"one", BODY_MARK + b"other"]
        answers += [await caller.post(gateway, key, f"/payments{query}", body=body, headers=headers) for body in bodies]
    # The id is the key, its alias, a token, a cookie, a tenant; and ids that would end a line.
    for name, value in [
        ("idempotency-key", f"{KEY_MARK}same"),
        ("x-payment-key", f"{KEY_MARK}same"),
        ("authorization", f"{CALLER_MARK}same"),
        ("cookie", f"{COOKIE_MARK}same"),
        ("x-tenant", f"{CALLER_MARK}same"),
    ]:
        for target in ("/payments", "/scoped/1", "/absent"):
            sent = {"idempotency-key": fresh_key(), **headers, name: value, "x-request-id": value}
            answers.append(await caller.post(gateway, sent["idempotency-key"], target + query, headers=sent))
            answers.append(await caller.get(gateway, target + query, headers=sent))
    # Refused, without a caller, broken by the upstream, too late.
    answers.append(await caller.post(gateway, f"{KEY_MARK}a, {KEY_MARK}b", f"/payments{query}", headers=headers))
    answers.append(await caller.post(gateway, fresh_key(), f"/scoped/1{query}", headers={**headers, "x-tenant": ""}))
    for reply in (Reply(cut="before-head"), Reply(cut="in-body"), Reply(delay=2)):
        key = fresh_key()
        ledger.answer(key, reply)
        try:
            answers.append(await caller.post(gateway, key, f"/payments{query}", headers=headers))
        except httpx.RemoteProtocolError:
            assert reply.cut == "in-body"
    gateway.terminate()
    assert gateway.exit_code() == 0
    assert {200, 400, 409, 422, 502, 504} - {answer.status_code for answer in answers} <= {200, 409}
    written = path.read_bytes().decode("ascii")
    count = len(answers) + 2  # healthz, and the one that broke off
    assert written.count("\n") == count
    for mark in (KEY_MARK, CALLER_MARK, BODY_MARK.decode(), COOKIE_MARK, QUERY_MARK, ANSWER_MARK, "Bearer"):
        for where, text in (("access log", written), ("log", gateway.text())):
            found = [line for line in text.splitlines() if mark.lower() in line.lower()]
            assert found == [], f"{mark} in the {where}"


async def test_every_line_of_the_log_about_a_request_has_its_id_and_its_trace(
    ledger: Ledger, start: Start, caller: Caller
) -> None:
    gateway = start(ledger.url).ready()
    trace = "0af7651916cd43dd8448eb211c80319c"
    key = fresh_key()
    ledger.answer(key, Reply(cut="before-head"))
    headers = {"x-request-id": "follow-me", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    answer = await caller.post(gateway, key, headers=headers)
    assert (answer.status_code, answer.json()["request_id"]) == (502, "follow-me")

    def about() -> list[dict[str, Any]]:
        return [each for each in events(gateway.text()) if each.get("request_id") == "follow-me"]

    await until(lambda: len(about()) == 2)
    assert {each["logger"] for each in about()} == {"oncegate.http", "oncegate.request"}
    assert all(each["trace_id"] == trace for each in about())
    assert all(len(each["time"]) == len("2026-01-01T00:00:00.000Z") for each in events(gateway.text()))
