"""``oncegate keys --gateway`` towards what is no gateway, or has no records to tell of: one line, and no word about a record.

Rules of docs/contract.md: R11.9, R11.23.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx
import pytest
from click.testing import CliRunner

from oncegate.app.cli.main import main
from oncegate.app.operators.pages import client
from testing.command_line import forked, invoke
from testing.dripping import DRIPS, dripping
from testing.upstreams import PATIENCE, Upstream, resetting_after

RECORD = f"{'a' * 20}:{'b' * 20}"
WHICH = ["--record", RECORD]
TOKEN = {"ONCEGATE_ADMIN_TOKEN": "t"}


class Liar(BaseHTTPRequestHandler):
    """Answers everything alike."""

    answer: ClassVar[tuple[int, bytes]] = (200, b"")

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.answer[0])
        self.send_header("content-length", str(len(self.answer[1])))
        self.end_headers()
        self.wfile.write(self.answer[1])

    do_POST = do_GET  # noqa: N815 - http.server's name for it

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def liar() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"[]"),
        (200, b'{"a":1}'),
        (200, b'{"records":[1],"cursor":5,"ids":5,"resolution":"funny","id":"x","state":"y"}'),
        (200, b'{"records":[{"id":"x","state":"unknown"}],"cursor":"","ids":["../x"],"resolution":1}'),
        (200, b'{"records":null,"cursor":null,"ids":null,"resolution":null}'),
        (404, b"<html>"),
        (404, b'{"detail":"Not Found"}'),
        (409, b'{"resolution":"funny"}'),
        (500, b'{"title":5}'),
        (302, b""),
    ],
)
@pytest.mark.parametrize(
    "command", [["list"], ["show", *WHICH], ["show", "k"], ["release", *WHICH], ["resolve", *WHICH, "--as", "failed"]]
)
def test_what_is_no_gateway_is_told_so(liar: str, status: int, body: bytes, command: list[str]) -> None:
    Liar.answer = (status, body)
    done = CliRunner().invoke(main, ["keys", *command, "--gateway", liar], env=TOKEN)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"oncegate: that is no gateway's records/: it answered {status}\n"


def test_what_a_stranger_answers_does_not_command_the_terminal(liar: str) -> None:
    Liar.answer = (503, b'{"title":"x","status":503,"detail":"\\u001b[2Jgone\\nand more"}')
    done = invoke("keys", "list", "--gateway", liar, **TOKEN)
    assert done.stderr == "oncegate: the gateway answered 503:  [2Jgone and more\n"


def test_a_cursor_that_leads_nowhere_is_not_followed_for_ever(liar: str) -> None:
    Liar.answer = (200, b'{"records":[],"cursor":"7"}')
    assert invoke("keys", "list", "--gateway", liar, **TOKEN).stdout == "None so far.\nThere is more: --cursor 7\n"


@pytest.mark.parametrize("command", [["list"], ["show", *WHICH], ["show", "k"], ["release", *WHICH]])
def test_a_gateway_without_records_says_nothing_about_one(command: list[str]) -> None:
    with forked("serve", "--upstream", "http://127.0.0.1:1", "--port", "0") as gateway:
        done = invoke("keys", *command, "--gateway", gateway.url(), **TOKEN)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("oncegate: no records here: the gateway has no operators' tokens")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", DRIPS)
def test_an_answer_that_never_ends_is_given_up(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of it comes in time."""
    monkeypatch.setattr(client, "SECONDS", 0.4)
    with dripping(*DRIPS[where]) as url:
        done = invoke("keys", "show", *WHICH, "--gateway", url, **TOKEN)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    # An interim answer is taken for a final one, which is no gateway's either.
    assert ("it answered 103" if where == "interim answers" else "did not end in time") in done.stderr


async def test_a_gateway_s_list_is_of_a_route_a_caller_or_a_time_too() -> None:
    """Of a memory that nothing else reaches; and what to do next is pasted with the gateway that was given."""
    mine = {"ONCEGATE_ADMIN_TOKEN": "the-operators-token"}
    async with Upstream(resetting_after()) as upstream:
        with forked("serve", "--upstream", upstream.url, "--port", "0", **mine) as gateway:
            url = gateway.url()
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
                for number in range(6):
                    headers = {"Idempotency-Key": f"k-{number}", "Authorization": f"Bearer {'ab'[number % 2]}"}
                    assert (await client.post("/x", headers=headers)).status_code == 502

            def listed(*options: str, stdin: str = "") -> list[dict[str, Any]]:
                done = invoke("keys", "list", "--json", "--gateway", url, *options, stdin=stdin, **mine)
                assert done.returncode == 0, done.stderr
                records: list[dict[str, Any]] = json.loads(done.stdout)["records"]
                assert records == sorted(records, key=lambda each: str(each["began_at"]), reverse=True)
                return records

            lately = await asyncio.to_thread(partial(invoke, "decisions", "--json", "--gateway", url, **mine))
            (decided,) = json.loads(lately.stdout)["decisions"]
            assert (decided["route"], decided["count"]) == ("*", 6)
            text = (await asyncio.to_thread(partial(invoke, "decisions", "--gateway", url, **mine))).stdout
            assert [line.split()[:2] for line in text.splitlines()] == [
                ["route", "decision"],
                ["*", "upstream-failed"],
                [],
                ["route", "outcome"],
                ["*", "unknown"],
                ["in", "the"],
            ]
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
                headers = {"Idempotency-Key": "k-0", "Authorization": "Bearer a"}
                for _ in range(2):
                    assert (await client.post("/x", headers=headers)).status_code == 409
            whose = await asyncio.to_thread(partial(invoke, "callers", "--json", "--gateway", url, **mine))
            (refused,) = json.loads(whose.stdout)["callers"]
            assert refused["routes"] == [{"route": "*", "count": 2, "decisions": {"outcome-unknown": 2}}]
            text = (await asyncio.to_thread(partial(invoke, "callers", "--gateway", url, **mine))).stdout
            assert text.splitlines()[1].split() == [refused["caller"], "*", "outcome-unknown", "2"]
            everything = await asyncio.to_thread(listed, "--since", "1h", "--route", "*")
            of_a = await asyncio.to_thread(partial(listed, "--caller", "-", stdin="Authorization: Bearer a"))
            assert (len(everything), len(of_a)) == (6, 3)
            by_digest = await asyncio.to_thread(listed, "--caller", refused["caller"])
            assert [each["id"] for each in by_digest] == [each["id"] for each in of_a]
            assert [each["id"] for each in of_a] == [each["id"] for each in everything][1::2]
            assert await asyncio.to_thread(listed, "--route", "/other") == []
            show = ("keys", "show", "--record", of_a[0]["id"], "--gateway", url)
            shown = (await asyncio.to_thread(partial(invoke, *show, **mine))).stdout
            (command,) = [line.partition("  oncegate ")[2] for line in shown.splitlines() if line.startswith("not?")]
            done = await asyncio.to_thread(partial(invoke, *command.split(), **mine))
            assert (done.returncode, "is absent now" in done.stdout) == (0, True), done.stderr
