"""The commands of docs/operations.md about unknown outcomes and old records, typed as they stand there."""

import re
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from testing.caller import fresh_key
from testing.command_line import PATIENCE, invoke, running
from testing.gateway import DEADLINE, Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer, free_port

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text("utf-8")


def commands(section: str) -> list[str]:
    """What is to be typed under ``section``, without the remarks beside it."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    block = re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)[0]
    return re.findall(r"^((?:oncegate|export|echo) .*?)(?: {2,}.*)?$", block, re.M)


def typed(command: str, environment: dict[str, str]) -> str:
    """What a command prints that ends well. ``echo`` in front of it is its standard input."""
    given, _, line = command.rpartition(" | ")
    stdin = given.removeprefix("echo ").strip("'") + "\n" if given else ""
    words = [word.strip("'") for word in line.split()]
    done = invoke(*words[1:], stdin=stdin, **environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_outcome_that_nobody_knows_is_found_and_settled_in_each_way(folder: Path) -> None:
    export, *lines = commands("A request whose outcome nobody knows")
    name, _, file = export.removeprefix("export ").partition("=")
    assert [line.split()[2] for line in lines] == ["list", "list", "show", "show", "resolve", "resolve", "release"]
    keys = [fresh_key() for _ in range(3)]
    with RedisServer() as redis, Ledger() as ledger:
        gateway = Gateway(folder / "log", ledger.url, redis.url, namespace="shop")
        (folder / file).write_text(f'upstream = "{ledger.url}"\ncache = "{redis.url}"\nnamespace = "shop"\n')
        (folder / "answer.json").write_text('{"id": 7}')

        def pay(key: str) -> httpx.Response:
            return httpx.post(f"{gateway.url}/payments", headers={"Idempotency-Key": key}, timeout=DEADLINE)

        try:
            gateway.ready()
            for key in keys:
                ledger.answer(key, Reply(cut="before-head"), Reply(201, (("content-type", "text/plain"),), b"again"))
            records = [pay(key).json()["record"] for key in keys]
            assert [pay(key).json()["code"] for key in keys] == ["outcome-unknown"] * 3
            found, of_route, shown = (typed(line.replace("ID", records[0]), {name: file}) for line in lines[:3])
            typed(lines[3].replace("ID", records[0]), {name: file})
            assert all(record in found for record in records)
            assert not any(record in of_route for record in records), "none is of a route with this pattern"
            assert "unknown" in shown
            for record, line in zip(records, lines[4:], strict=True):
                typed(line.replace("ID", record).replace("@FILE", "@answer.json"), {name: file})
            answers = [pay(key) for key in keys]
        finally:
            gateway.end()
        assert (answers[0].status_code, answers[0].json()) == (201, {"id": 7})
        assert [answer.text for answer in answers[1:]] == ["again", "again"]
        assert [len(ledger.arrivals(key)) for key in keys] == [1, 2, 2]
        attempts = [dict(ledger.arrivals(key)[-1].fields)["idempotency-attempt"] for key in keys]
        assert attempts == ["1", "2", "1"], "what was released begins again"


def test_what_was_kept_for_one_caller_is_removed_and_for_nobody_else(folder: Path) -> None:
    (counted, by_route, by_age) = commands("Removing records")
    with RedisServer() as redis, Ledger() as ledger:
        gateway = Gateway(folder / "log", ledger.url, redis.url, namespace="shop", routes=[{"path": "/payments/*"}])
        (folder / "gateway.toml").write_text(
            f'upstream = "{ledger.url}"\ncache = "{redis.url}"\nnamespace = "shop"\n[[routes]]\npath = "/payments/*"\n'
        )

        def pay(path: str, caller: str) -> bool:
            headers = {"Idempotency-Key": "k", "Authorization": caller}
            answer = httpx.post(f"{gateway.url}{path}", headers=headers, timeout=DEADLINE)
            return bool(answer.headers.get("idempotent-replayed") == "true")

        try:
            gateway.ready()
            calls = [("/payments/1", "Bearer ..."), ("/other", "Bearer other")]
            assert [pay(*call) for call in calls] == [False, False]
            assert "1" in typed(counted, {})
            typed(by_age, {})
            assert [pay(*call) for call in calls] == [True, True], "counted alone, and nothing is as old"
            typed(by_route, {})
            assert [pay(*call) for call in calls] == [False, True]
            typed(counted.replace(" --dry-run", ""), {})
            assert [pay(*call) for call in calls] == [False, True]
        finally:
            gateway.end()


def test_a_configuration_is_compared_and_read_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    against_file, against_gateway, reload = commands("Change without a stop")
    token = "a token that nobody guesses"
    monkeypatch.setenv("ONCEGATE_ADMIN_TOKEN", token)
    with Ledger() as ledger:
        text = f'upstream = "{ledger.url}"\n'
        for name in ("before.toml", "gateway.toml"):
            (folder / name).write_text(text)
        file = str(folder / "gateway.toml")
        gateway = Gateway(folder / "log", ledger.url, config=file, admin_token=token, namespace="default")
        try:
            gateway.ready()
            (folder / "gateway.toml").write_text(f'{text}[[routes]]\npath = "/payments"\non_missing_key = "reject"\n')
            sentence = "POST /payments keys become required: a request without one gets 400 key-missing"
            assert sentence in PAGE
            for command in (against_file, against_gateway.replace("http://127.0.0.1:8080", gateway.url)):
                assert sentence in typed(command, {"ONCEGATE_ADMIN_TOKEN": token})
            done = typed(reload.replace("http://127.0.0.1:8080", gateway.url), {"ONCEGATE_ADMIN_TOKEN": token})
            assert "is in effect in all processes" in done
            refused = httpx.post(f"{gateway.url}/payments", timeout=DEADLINE)
            assert (refused.status_code, refused.json()["code"]) == (400, "key-missing")
        finally:
            gateway.end()


def test_new_code_without_a_stop(folder: Path, redis_url: str) -> None:
    (command,) = commands("New code without a stop")
    assert command.split()[1:] == ["serve", "--config", "oncegate.toml", "--replace"]
    port = free_port()
    Path("oncegate.toml").write_text(f'upstream = "http://127.0.0.1:{port}"\ncache = "{redis_url}"\nport = {port + 1}')
    with socket.create_server(("127.0.0.1", port)), ExitStack() as stack:
        environment = {"RUNTIME_DIRECTORY": str(folder)}
        old = stack.enter_context(running(*command.split()[1:-1], **environment))
        old.url()
        new = stack.enter_context(running(*command.split()[1:], **environment))
        assert new.url() == old.url()
        assert old.process.wait(PATIENCE) == 0
