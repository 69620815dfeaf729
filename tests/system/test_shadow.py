"""The same clients before a service, before a gateway that observes, and before one that enforces.

Rules of docs/contract.md: R7.20, R7.21, R7.22, R11.30.
"""

import json
import re
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from testing.caller import RawClient
from testing.command_line import invoke
from testing.gateway import DEADLINE, Gateway
from testing.servers import RedisServer
from testing.waiting import wait_until
from tests.system.conftest import UNHURRIED, Start
from tests.system.population import ROUTES, Answer, Sent, Service, Visitors, population

SHADOW = {"enforce": 0, "shadow": True}
Counts = dict[tuple[str, str, str], int]


@pytest.fixture
def namespace() -> str:
    return uuid4().hex


def page(gateway: Gateway) -> str:
    with urllib.request.urlopen(f"{gateway.url}/_oncegate/metrics", timeout=DEADLINE) as answer:
        return str(answer.read().decode())


def counts(gateway: Gateway, mode: str) -> Counts:
    """What the gateway has decided, by route, method and decision."""
    found: Counts = {}
    for labels, value in re.findall(r"^oncegate_requests_total\{(.*)\} (\S+)$", page(gateway), re.M):
        of = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if of["mode"] == mode and float(value):
            found[of["route"], of["method"], of["decision"]] = int(float(value))
    return found


def counting(gateway: Gateway, operation: str) -> Callable[[], Callable[[int], None]]:
    """Waits for so many more answers of the cache."""

    def answered() -> int:
        pattern = rf'^oncegate_cache_seconds_count\{{operation="{operation}"\}} (\S+)$'
        return sum(int(float(value)) for value in re.findall(pattern, page(gateway), re.M))

    def begin() -> Callable[[int], None]:
        before = answered()

        def wait(number: int) -> None:
            wait_until(lambda: answered() >= before + number, f"{number} more {operation}")

        return wait

    return begin


def watched(service: Service, gateway: Gateway, *, executes_all: bool) -> Visitors:
    return Visitors(
        service,
        gateway.address,
        executes_all=executes_all,
        decided=counting(gateway, "claim"),
        recorded=counting(gateway, "complete"),
    )


def direct(service: Service) -> Visitors:
    url = urlsplit(service.url)
    return Visitors(service, (url.hostname or "", url.port or 0), executes_all=True)


def report(*logs: Path) -> dict[str, Any]:
    done = invoke("shadow", "report", "--json", *map(str, logs))
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def predicted(found: dict[str, Any]) -> Counts:
    return {(row["route"], row["method"], row["decision"]): row["count"] for row in found["requests"]}


def same(answers: dict[int, Answer], others: dict[int, Answer]) -> None:
    assert answers.keys() == others.keys()
    for number, answer in answers.items():
        assert answer == others[number], number


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_report_predicts_what_enforcement_does_and_clients_see_what_they_would_see_without(
    start: Start, redis_server: RedisServer, namespace: str, seed: int
) -> None:
    steps = population(seed, 300)
    settings: dict[str, Any] = {"routes": ROUTES, "workers": 2, "via": False, "cache_timeout": UNHURRIED}
    with Service() as alone, Service() as shadowed, Service() as enforced:
        shadow = start(shadowed.url, redis_server.url, namespace=f"{namespace}s", idempotency=SHADOW, **settings)
        enforcing = start(enforced.url, redis_server.url, namespace=f"{namespace}e", **settings)
        without = direct(alone).play(steps)
        with_shadow = watched(shadowed, shadow.ready(), executes_all=True).play(steps)
        watched(enforced, enforcing.ready(), executes_all=False).play(steps)

        same(with_shadow, without)
        assert shadowed.arrivals == alone.arrivals, "each request has arrived, once"
        done = counts(enforcing, "enforced")
        assert sum(done.values()) >= 300
        assert {"first", "replayed", "in-flight", "key-reused", "key-missing", "key-invalid", "payload-too-large"} <= {
            decision for _, _, decision in done
        }
        wait_until(lambda: sum(counts(shadow, "shadow").values()) >= sum(done.values()), "all are observed")
        assert counts(shadow, "shadow") == done
        assert counts(shadow, "enforced") == {}
        found = report(shadow.log)
        assert predicted(found) == done

        # What was executed twice is what was executed by the one and not by the other, and named.
        again = sum(row["count"] for row in found["executed_twice"])
        refused = {row["decision"] for row in found["refused"]}
        assert again == sum(n for (_, _, each), n in done.items() if each in ("replayed", "in-flight", "duplicate"))
        assert {"key-reused", "key-missing", "in-flight", "payload-too-large"} <= refused
        without_keys = sum(row["count"] for row in found["without_keys"])
        assert without_keys == sum(n for (_, _, each), n in done.items() if each in ("bypass", "key-missing"))
        executed_less = shadowed.arrivals.total() - enforced.arrivals.total()
        assert executed_less == again + sum(
            row["count"] for row in found["refused"] if row["decision"] not in ("in-flight", "duplicate")
        )
        for mark in ("raw-key-", "secret-of-", "body-of-"):
            assert mark not in json.dumps(found)


def test_the_cache_is_killed_meanwhile_and_nothing_changes_for_clients(start: Start, namespace: str) -> None:
    steps = population(4, 60)
    with Service() as alone, Service() as shadowed, RedisServer() as redis:
        gateway = start(
            shadowed.url, redis.url, namespace=namespace, idempotency=SHADOW, routes=ROUTES, workers=2, via=False
        ).ready()

        def between(index: int) -> None:
            if index in (20, 50):
                redis.stop()
            elif index == 40:
                redis.start()

        visitors = Visitors(shadowed, gateway.address, executes_all=True)
        same(visitors.play(steps, between), direct(alone).play(steps))
        assert shadowed.arrivals == alone.arrivals
        number = len(population(4, 60)) + sum(step.times - 1 + 2 * step.leaves for step in steps)
        wait_until(lambda: sum(counts(gateway, "shadow").values()) >= number, "all are observed")
        decisions: Counter[str] = Counter()
        for (_, _, decision), count in counts(gateway, "shadow").items():
            decisions[decision] += count
        assert decisions["cache-unavailable"] > 0
        assert decisions["first"] > 0
        assert predicted(report(gateway.log)) == counts(gateway, "shadow")


def test_a_share_grows_and_each_key_is_on_one_side_at_a_time(
    start: Start, redis_server: RedisServer, namespace: str
) -> None:
    """From 0 to 5 to 60 to 100, by new gateways of two workers each, the last two of which have another secret in front."""
    keys = [f"raw-key-{namespace}-{number}" for number in range(60)]
    first, second = "a" * 32, "b" * 32
    shares = [(0, first), (5, first), (60, [second, first]), (100, [second, first])]
    numbers = iter(range(10**6))
    enforced_before: set[str] = set()
    receipts: dict[str, list[int]] = {}
    logs = []
    with Service() as service:
        for percent, secret in shares:
            gateway = start(
                service.url,
                redis_server.url,
                namespace=namespace,
                workers=2,
                secret=secret,
                cache_timeout=UNHURRIED,
                idempotency={"enforce": percent, "shadow": True},
            ).ready()
            logs.append(gateway.log)
            enforced: set[str] = set()
            for key in keys:
                arrived = []
                for _ in range(4):
                    number = next(numbers)
                    with RawClient(gateway) as client:
                        client.send(Sent("/payments", key, number=number).bytes())
                        answer = client.answer()
                    assert answer.status == 201
                    arrived.append(bool(service.arrivals[str(number)]))
                    receipts.setdefault(key, []).append(int(re.findall(rb"\d+", answer.body)[0]))
                # All that were there before are known: under enforcement none arrives, but the very first one of a key.
                assert len(set(arrived[1:])) == 1, "a key on two sides"
                if not arrived[1]:
                    enforced.add(key)
            assert enforced_before <= enforced, "a key that was under enforcement is not any more"
            assert {0: 0, 100: len(keys)}.get(percent, len(enforced)) == len(enforced)
            enforced_before = enforced
            gateway.terminate()
            assert gateway.exit_code() == 0
    # The first execution of a key is the one that is replayed, whoever has enforced or observed it; each of the others is named.
    named = sum(row["count"] for row in report(*logs)["executed_twice"])
    executed = service.arrivals.total()
    assert named == executed - len(keys)
    for key in keys:
        assert receipts[key][-1] == receipts[key][0]
