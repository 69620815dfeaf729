"""A configuration that is read anew under load: nobody is refused, and each answer is under one configuration.

Rules of docs/contract.md: R10.13, R10.14, R10.15, R10.16, R11.24.

Two configurations differ in the key's header and in ``via``, which an answer shows both.
"""

import asyncio
import os
import re
import signal
import ssl
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from oncegate.app.demo.upstream import Payments, serving
from testing.caller import fresh_key
from testing.certificates import Authority
from testing.command_line import forked, invoke
from testing.gateway import DEADLINE
from testing.upstreams import OK, Peer
from testing.waiting import until
from tests.system.reloading import KEY, Reloading, clients, configuration, reloading, seen, under_load

WRONG = {
    "no TOML": "upstream = ",
    "unknown": "upstreem = 'http://127.0.0.1:1'\n",
    "of another type": "max_in_flight = 'many'\n",
    "contradicts itself": "cache_timeout = 10\n[idempotency]\nlease = 1\n",
    "names no variable": "secret = '${ONCEGATE_NOT_SET}'\n",
    "names no file": "secret_file = '/nowhere/at/all'\n",
    "claims without keys": "[idempotency]\nscope = ['jwt:sub']\n",
    "is empty of what it needs": "[[routes]]\nmethods = ['POST']\n",
}


UNUSABLE = "[idempotency]\nscope = ['jwt:sub']\n[jwt]\njwks = '/nowhere/at/all'\n"
"""Consistent, but the gateway for it can't be made."""


@pytest.fixture(params=[1, 2], ids=["alone", "two workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def met(found: list[str], name: str, before: int) -> None:
    """Waits until a request was answered by the configuration ``name``, behind the first ones of what was ``found``."""
    await until(lambda: name in found[before:], f"one is answered by {name}")


async def change_often(one: Reloading, times: int, found: list[str]) -> None:
    """A right file, then a wrong one, and so on; and what came of each. Each right one is met by a request of the load."""
    wrong = [*WRONG.values(), UNUSABLE]
    right = 0
    for number in range(times):
        if number % 2:
            line = await one.reload(wrong[number // 2 % len(wrong)])
            assert line.startswith("not reloaded, configuration "), line
        else:
            right += 1
            name, before = "ab"[right % 2], len(found)
            line = await one.reload(configuration(name))
            assert line.startswith("reloaded: configuration "), line
            await met(found, name, before)


@pytest.mark.parametrize("times", [24, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_reloads_under_load_refuse_nobody(times: int, workers: int, redis_url: str, tmp_path: Path) -> None:
    """Half of them with wrong files: those change nothing."""
    async with reloading(tmp_path, redis_url, workers, configuration("a")) as one:
        found = await under_load(one, lambda found: change_often(one, times, found))
        assert {*found} == {"a", "b"}
        last = "ab"[(times // 2) % 2]
        async with clients(one.gateway.url) as client:
            (digest,) = re.findall(r"configuration (\w+)", one.lines()[-2])
            assert await one.serving(client) == {digest: workers}
            policy = (await client.get("/_oncegate/policy")).json()
            assert (policy["configuration"], policy["routes"][-1]["header"]) == (digest, f"Key-{last}")
            page = (await client.get("/_oncegate/metrics")).text
        for outcome in ("applied", "refused"):
            assert f'oncegate_reloads_total{{outcome="{outcome}"}} {times / 2:.1f}' in page
        for _ in range(4 * workers):  # whichever worker it is
            async with clients(one.gateway.url) as client:
                assert await one.pay(client) == last
        assert "Traceback" not in one.gateway.text()
        assert "ended by itself" not in one.gateway.text()


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
async def test_a_wrong_file_changes_nothing_and_is_the_line_of_check(text: str, tmp_path: Path) -> None:
    async with reloading(tmp_path, "memory://", 1, configuration("a")) as one:
        line = await one.reload(text)
        check = ("check", "--config", str(one.file), "--upstream", one.upstream.url)
        checked = await asyncio.to_thread(invoke, *check)  # which has an event loop of its own
        line_of_check = line.partition(" stays: ")[2]
        assert line_of_check
        assert "\\n" not in line_of_check
        assert line_of_check in checked.stdout + checked.stderr
        assert checked.returncode != 0
        async with clients(one.gateway.url) as client:
            assert await one.pay(client) == "a"


async def test_a_request_in_flight_ends_as_it_began(workers: int, redis_url: str, tmp_path: Path) -> None:
    """One that is at the upstream, one whose body is not whole yet, and one that waits for the first."""
    go_on = asyncio.Event()

    async def behave(peer: Peer) -> None:
        while True:
            request = await peer.request()
            if " /slow " in request.line:
                await go_on.wait()
            await peer.send(OK)

    async with (
        reloading(tmp_path, redis_url, workers, configuration("a"), behave) as one,
        clients(one.gateway.url) as client,
    ):
        headers = {KEY: fresh_key(), "Authorization": "Bearer a"}
        slow = asyncio.create_task(client.post("/slow", headers=headers, content=b"{}"))
        passing = asyncio.create_task(client.get("/slow"))
        await one.upstream.received(2)
        waiting = asyncio.create_task(client.post("/slow", headers=headers | {"Prefer": "wait=30"}, content=b"{}"))
        assert (await one.reload(configuration("b"))).startswith("reloaded")
        assert await one.pay(client) == "b"
        assert not slow.done()
        go_on.set()
        assert seen(await slow) == "a"
        assert "via" in (await passing).headers
        assert (await waiting).headers["idempotent-replayed"] == "true"


async def test_a_certificate_is_renewed_under_load(workers: int, redis_url: str, tmp_path: Path) -> None:
    """New connections get the new one, those that are open go on; files that can't be used change nothing."""
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    text = configuration("a").replace("via", f"tls_cert = '{cert}'\ntls_key = '{key}'\nvia", 1)

    def shown(address: tuple[str, int]) -> bool:
        return ssl.get_server_certificate(address).strip() in cert.read_text()

    async with reloading(tmp_path, redis_url, workers, text) as one, clients(one.gateway.url) as opened:
        assert await one.pay(opened) == "a"

        async def renew() -> None:
            for number in range(8):
                new_cert, new_key = authority.issue()
                new_key.replace(key)
                if number % 2:
                    assert f"tls_key: {key} is not the key of the certificate" in await one.reload(text)
                new_cert.replace(cert)
                assert (await one.reload(text)).startswith("reloaded")
                for _ in range(2 * workers):  # whichever worker it is
                    assert await asyncio.to_thread(shown, one.gateway.address)

        assert {*await under_load(one, lambda _: renew())} == {"a"}
        assert await one.pay(opened) == "a"
        line = await one.reload(configuration("b"))
        assert line.startswith("reloaded")
        assert "tls_cert, tls_key: changed, and in effect after a restart" in one.gateway.text()
        assert await one.pay(opened) == "b"


async def test_several_signals_at_once_end_with_the_last_file(workers: int, redis_url: str, tmp_path: Path) -> None:
    async with reloading(tmp_path, redis_url, workers, configuration("a")) as one:
        for name in "bababab":
            one.write(configuration(name))
            os.kill(one.gateway.pid, signal.SIGHUP)
            os.kill(one.gateway.pid, signal.SIGHUP)
        async with clients(one.gateway.url) as client:
            await until(lambda: one.pays_by(client, "b"), "the last file is in effect")
            done = await client.post("/_oncegate/reload/", headers={"Authorization": f"Bearer {'w' * 20}"})
            assert done.status_code == 200  # behind all that the signals have begun
            assert one.lines()[-1].endswith("as before")
            assert len(await one.serving(client)) == 1
            assert await one.pay(client) == "b"


async def test_operators_reload_by_the_api_and_get_what_came_of_it(
    workers: int, redis_url: str, tmp_path: Path
) -> None:
    """By the command, too. Who may only read may not; each is in the log of audits."""
    async with (
        reloading(tmp_path, redis_url, workers, configuration("a")) as one,
        clients(one.gateway.url) as client,
    ):

        async def send(token: str) -> httpx.Response:
            return await client.post("/_oncegate/reload/", headers={"Authorization": f"Bearer {token * 20}"})

        one.write("cache_timeout = 9\n" + configuration("b").replace("cache_timeout = 10\n", ""))
        refused = [await send("x"), await send("r")]
        assert [each.status_code for each in refused] == [401, 403]
        assert one.lines() == []
        done = await send("w")
        assert (done.status_code, done.json()["after_restart"]) == (200, ["cache_timeout"])
        assert await one.serving(client) == {done.json()["configuration"]: workers}
        assert await one.pay(client) == "b"
        one.write(WRONG["unknown"])
        wrong = await send("w")
        assert (wrong.status_code, wrong.json()["title"]) == (409, "Not Reloaded")
        assert "upstreem" in wrong.json()["detail"]
        assert await one.pay(client) == "b"
        audited = re.findall(r'"oncegate.audit".*?"message": "([^"]*)"', one.gateway.text())
        digest = done.json()["configuration"]
        assert audited == [f"configuration {digest}: {what} by w" for what in ("reloaded", "not reloaded")]

        command = ("reload", "--gateway", one.gateway.url)
        refusal = await asyncio.to_thread(lambda: invoke(*command, ONCEGATE_ADMIN_TOKEN="w" * 20))
        assert refusal.returncode == 1
        assert re.fullmatch(r"oncegate: nothing was changed: upstreem [^\n]*\n", refusal.stderr)
        one.write(configuration("a"))
        applied = await asyncio.to_thread(lambda: invoke(*command, ONCEGATE_ADMIN_TOKEN="w" * 20))
        assert applied.returncode == 0
        assert re.fullmatch(r"configuration \w{12} is in effect in all processes\n", applied.stdout)
        assert await one.pay(client) == "a"
        one.reloads = 4


async def test_many_operators_at_once_each_get_what_came_of_a_reload(redis_url: str, tmp_path: Path) -> None:
    """Of one that has begun after they asked: what they had written is in effect."""
    async with reloading(tmp_path, redis_url, 2, configuration("a")) as one:

        async def reload() -> None:
            async with clients(one.gateway.url) as client:
                done = await client.post("/_oncegate/reload/", headers={"Authorization": f"Bearer {'w' * 20}"})
                assert done.status_code == 200

        one.write(configuration("b"))
        await asyncio.gather(*[reload() for _ in range(12)])
        async with clients(one.gateway.url) as client:
            assert await one.pay(client) == "b"
            assert len(await one.serving(client)) == 1


async def test_a_secret_is_changed_step_by_step_and_no_other_way(redis_url: str, tmp_path: Path) -> None:
    """In a namespace whose records are under it: retries from before find theirs at each step."""
    old, new, another = (f"{name}, a secret of 32 bytes or more" for name in ("old", "new", "another"))
    file = tmp_path / "secret"

    def text() -> str:
        return configuration("a").replace("via", f"secret_file = '{file}'\nvia", 1)

    def write(*lines: str) -> None:
        file.write_text("\n".join(line.replace(" ", "_") for line in lines))

    write(old)
    async with reloading(tmp_path, redis_url, 2, text()) as one, clients(one.gateway.url) as client:
        headers = {KEY: fresh_key(), "Authorization": "Bearer a"}
        assert (await client.post("/payments", headers=headers, content=b"{}")).status_code == 200
        write(another)
        assert "stays: cache: the records of namespace " in await one.reload(text())
        write(new, old)
        assert "stays: secret: a step of its rotation is left out" in await one.reload(text())
        for lines in ((old, new), (new, old), (old, new), (new, old)):
            write(*lines)
            assert (await one.reload(text())).startswith("reloaded")
            for _ in range(6):
                async with clients(one.gateway.url) as fresh:
                    again = await fresh.post("/payments", headers=headers, content=b"{}")
                    assert again.headers.get("idempotent-replayed") == "true"
        assert len(one.upstream.requests) == 1
        for secret in (old, new, another):
            assert secret.replace(" ", "_") not in one.gateway.text()


AT_THE_START = """
import os, signal
from oncegate.app.gateway_server import GatewayServer
startup = GatewayServer.startup
async def hung_up(self, sockets=None):
    os.kill(os.getpid(), signal.SIGHUP)
    await startup(self, sockets)
GatewayServer.startup = hung_up
"""


async def test_a_signal_during_the_start_is_not_lost(tmp_path: Path) -> None:
    async with reloading(tmp_path, "memory://", 1, configuration("a"), before=AT_THE_START) as one:
        assert (await one.over()).endswith("as before")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_log_follows(workers: int, redis_url: str, tmp_path: Path) -> None:
    """Its level, in each process."""
    file = tmp_path / "oncegate.toml"
    text = f"namespace = '{uuid4().hex}'\ncache_timeout = 10\nlog_level = "
    file.write_text(f"{text}'info'\n")
    with serving(Payments(lambda _: None)) as upstream:
        serve = ("serve", "--upstream", upstream, "--cache", redis_url, "--port", "0", "--workers", str(workers))
        with forked(*serve, "--config", str(file)) as gateway:
            url = gateway.url(workers)

            def reload(level: str) -> None:
                file.write_text(f"{text}'{level}'\n")
                gateway.process.send_signal(signal.SIGHUP)

            def pay() -> None:
                paid = httpx.post(f"{url}/payments", headers={KEY: fresh_key()}, json={"amount": 1}, timeout=DEADLINE)
                assert paid.status_code == 201

            pay()
            reload("debug")
            gateway.wait_for("reloaded: configuration")
            assert "first -> 201" not in gateway.output
            pay()
            gateway.wait_for("first -> 201")
            reload("error")
            reload("no level")
            gateway.wait_for("not reloaded")
            assert gateway.stop() == 0
