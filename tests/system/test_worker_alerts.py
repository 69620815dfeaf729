"""The shipped alerts for workers in a real Prometheus: each is active after the first event of its kind, and none before."""

from functools import partial
from pathlib import Path

import pytest

from oncegate.middleware.rules.keys.key import execution_key, record_key
from testing.servers import RedisServer, free_port
from testing.waiting import wait_until
from tests.system.prometheus import OF_CONSUMERS, Prometheus
from tests.worker.shop import Shop, waiting

RULES = {"idempotency__lease": 3, "idempotency__attempt_timeout": 30, "cache_timeout": 1}


@pytest.mark.timeout(600)  # one alert after the other
def test_each_alert_is_active_after_the_first_event_and_none_before(tmp_path: Path) -> None:
    with RedisServer(persist=True) as server:
        shop, port = Shop(server.url, tmp_path), free_port()
        try:
            shop.start(metrics_port=port, settings=RULES, retry_base=600).reads()
            with Prometheus(f"127.0.0.1:{port}", "/metrics") as prometheus:
                walk(shop, server, prometheus)
        finally:
            shop.close()


def walk(shop: Shop, server: RedisServer, prometheus: Prometheus) -> None:
    expected = set[str]()

    active = partial(prometheus.become_active, expected)

    wait_until(lambda: prometheus.scrapes() >= 2, "the worker is looked at")
    shop.submit("good")
    shop.submit("good")
    shop.done()
    active()

    shop.submit("bad", {"do": "reject"})
    active("OncegateDeadLetters")

    shop.submit("who knows", {"do": "unknown"})
    active("OncegateExecutionUnknown")

    # The cache forgets the record of what is being executed, and a copy of the command begins beside it.
    command = {"do": "wait", "gate": str(shop.folder / "gate")}
    shop.submit("lost", command)
    wait_until(lambda: waiting(shop) == 1, "it is executed")
    shop.redis.delete(execution_key(record_key(shop.namespace, "lost", None), "commands"))
    active("OncegateExecutionLeaseLost")
    shop.submit("lost", command)
    in_flight = "sum(oncegate_executions_in_flight)"
    wait_until(lambda: [each["value"][1] for each in prometheus.query(in_flight)] == ["2"], "its copy is executed")
    (shop.folder / "gate").touch()
    active("OncegateExecutionOutcomeRefused")

    # The cache goes away while a command is executed.
    shop.submit("waits", {"do": "wait", "gate": str(shop.folder / "later")})
    wait_until(lambda: len(list(shop.folder.glob("later.*"))) == 1, "it is executed")
    server.stop()
    (shop.folder / "later").touch()
    active("OncegateExecutionOutcomesWaiting")
    assert expected == OF_CONSUMERS
