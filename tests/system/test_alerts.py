"""The shipped alerts in a real Prometheus: each is active after the first event of its kind, and none before."""

import asyncio
import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from oncegate.prometheus.families import FROM_THE_START
from testing.caller import Caller, fresh_key, slug, until_answer
from testing.certificates import Authority
from testing.fetching import fetched
from testing.gateway import Gateway
from testing.ledger import Ledger, Reply
from testing.servers import RedisServer
from testing.waiting import until
from tests.system.conftest import Start
from tests.system.prometheus import ALERTS, OF_CERTIFICATES, OF_GATEWAYS, OF_PROCESSES, OF_ROLLOUTS, RULES, Prometheus


def test_the_shipped_rules_are_rules() -> None:
    done = subprocess.run(
        [f"{fetched('prometheus')}/promtool", "check", "rules", RULES], capture_output=True, text=True
    )
    assert (done.returncode, f"{len(ALERTS)} rules found" in done.stdout) == (0, True), done.stdout + done.stderr


def test_every_decision_that_an_alert_is_made_of_is_there_from_the_start() -> None:
    ours = [ALERTS[name]["expr"] for name in OF_GATEWAYS]
    found = [re.findall(r'decision=~?"([^"]+)"', expression) for expression in ours]
    assert {slug for each in found for text in each for slug in text.split("|")} == set(FROM_THE_START)


async def kill_the_one_that_holds(task: "asyncio.Task[httpx.Response]", gateway: Gateway) -> int:
    """SIGKILL for one worker after the other, until the request breaks; how many that took."""
    for killed, child in enumerate(gateway.workers(), 1):
        os.kill(child, signal.SIGKILL)
        await until(lambda count=killed: gateway.text().count("ended by itself") == count, "its parent notices")  # type: ignore[misc]  # the loop's value is bound on purpose
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                with pytest.raises(httpx.TransportError):
                    await asyncio.shield(task)
                return killed
    raise AssertionError("no worker held it")


@pytest.mark.timeout(600)  # one alert after the other
async def test_each_alert_is_active_after_the_first_event_and_none_before(
    start: Start, ledger: Ledger, caller: Caller, tmp_path: Path
) -> None:
    (file := tmp_path / "oncegate.toml").write_text("")
    with RedisServer(persist=True) as server, ledger.gate() as gate:
        rules = {"lease": 3, "ttl": 60}
        started = start(ledger.url, server.url, workers=2, cache_timeout=1, idempotency=rules, config=str(file))
        gateway = started.ready()
        with Prometheus("{}:{}".format(*gateway.address)) as prometheus:

            async def active(*names: str) -> None:
                await asyncio.to_thread(prometheus.become_active, expected, *names)

            expected = set[str]()
            await until(lambda: prometheus.scrapes() >= 2, "the gateway is looked at")
            assert (await caller.post(gateway, fresh_key())).status_code == 201
            await active()

            file.write_text("upstreem = 1")
            os.kill(gateway.pid, signal.SIGHUP)
            await active("OncegateReloadRefused")

            # A worker is killed while it waits for the upstream, for longer than the second after which records are named.
            killed = fresh_key()
            ledger.answer(killed, Reply(gate=gate))
            task = caller.send(gateway, killed)
            await until(lambda: renewed(prometheus), "its lease is renewed")
            deaths = await kill_the_one_that_holds(task, gateway)
            await active("OncegateWorkerDied", "OncegateAttemptsLost")
            assert total(prometheus, "oncegate_attempts_lost_total") == 1
            assert total(prometheus, "oncegate_worker_deaths_total") == deaths
            assert total(prometheus, "oncegate_attempts_in_flight") == 0
            events = [json.loads(line)["message"] for line in gateway.text().splitlines()]
            (logged,) = [event for event in events if "the outcome is unknown, its worker" in event]

            refused = await until_answer(lambda: caller.post(gateway, killed), "outcome-unknown")
            assert refused.json()["record"] in logged
            await active("OncegateRefusedAsUnknown")

            broken = fresh_key()
            ledger.answer(broken, Reply(cut="before-head"))
            assert slug(await caller.post(gateway, broken)) == "upstream-failed"
            await active("OncegateOutcomeUnknown")

            # The cache forgets a record whose attempt runs, and somebody else begins another one.
            twice = fresh_key()
            ledger.answer(twice, Reply(gate=gate))
            first = caller.send(gateway, twice)
            await until(lambda: len(ledger.arrivals(twice)) == 1, "the attempt runs")
            server.command("FLUSHALL")
            await active("OncegateLeaseLost")
            second = caller.send(gateway, twice)
            await until(lambda: len(ledger.arrivals(twice)) == 2, "another attempt runs")
            gate.open()
            await asyncio.gather(first, second)
            await active("OncegateOutcomeRefused")

            # The cache goes away while the upstream works.
            async with caller.held(ledger, gateway, fresh_key()) as (task, later):
                server.stop()
                later.open()
                assert (await task).status_code == 201
            await active("OncegateOutcomesWaiting")
            assert slug(await caller.post(gateway, fresh_key())) == "cache-unavailable"
            await active("OncegateRefusesKeys")
            assert expected == OF_GATEWAYS


async def test_a_gateway_that_is_gone_is_found(start: Start, ledger: Ledger) -> None:
    gateway = start(ledger.url).ready()
    with Prometheus("{}:{}".format(*gateway.address)) as prometheus:
        await until(lambda: prometheus.scrapes() >= 2, "the gateway is looked at")
        await asyncio.to_thread(prometheus.become_active, set[str]())
        gateway.kill()
        await asyncio.to_thread(prometheus.become_active, set[str](), *OF_PROCESSES)


async def test_a_shadow_is_counted_from_its_first_day_on(start: Start, ledger: Ledger) -> None:
    gateway = start(ledger.url, idempotency={"enforce": 5, "shadow": True}).ready()
    with Prometheus("{}:{}".format(*gateway.address)) as prometheus:
        await until(lambda: prometheus.scrapes() >= 2, "the gateway is looked at")
        await asyncio.to_thread(prometheus.become_active, set[str](), *OF_ROLLOUTS)
        assert [ALERTS[name]["for"] for name in OF_ROLLOUTS] == ["14d"]
    one = start(ledger.url, idempotency={"enforce": 5}).ready()  # a part, of which the rest is not observed
    with Prometheus("{}:{}".format(*one.address)) as prometheus:
        await until(lambda: prometheus.scrapes() >= 2, "the gateway is looked at")
        await asyncio.to_thread(prometheus.become_active, set[str]())


async def test_a_certificate_that_ends_soon_is_found_until_another_one_is_read(
    start: Start, ledger: Ledger, tmp_path: Path
) -> None:
    """The one that is shown counts, not the one in the file."""
    authority = Authority(tmp_path)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def renew(days: float) -> None:
        new_cert, new_key = authority.issue(days=days)
        new_cert.replace(cert)
        new_key.replace(key)

    renew(14.1)
    (file := tmp_path / "oncegate.toml").write_text(f"tls_cert = '{cert}'\ntls_key = '{key}'\n")
    gateway = start(ledger.url, workers=2, config=str(file), cache=f"sqlite:///{tmp_path}/records.db").ready()
    with Prometheus("{}:{}".format(*gateway.address), ca=authority.ca) as prometheus:
        await until(lambda: prometheus.scrapes() >= 2, "the gateway is looked at")
        await asyncio.to_thread(prometheus.become_active, set[str]())
        for count, days in enumerate([13.9, 90, 1], 1):
            before = prometheus.active()
            renew(days)
            assert (await asyncio.to_thread(prometheus.evaluated), prometheus.active()) == (True, before)
            os.kill(gateway.pid, signal.SIGHUP)
            await until(lambda count=count: gateway.text().count('"reloaded: ') == count, "reloaded")  # type: ignore[misc]  # the loop's value is bound on purpose
            await asyncio.to_thread(prometheus.become_active, OF_CERTIFICATES if days < 14 else set[str]())


def total(prometheus: Prometheus, name: str) -> float:
    (found,) = prometheus.query(f"sum({name})")
    return float(found["value"][1])


def renewed(prometheus: Prometheus) -> bool:
    return total(prometheus, 'oncegate_cache_seconds_count{operation="renew"}') > 0
