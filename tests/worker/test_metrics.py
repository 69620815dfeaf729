"""What a worker serves for Prometheus, and whether it is up: real processes, asked over HTTP.

Rules of docs/contract.md: R8.40.
"""

import json
import socket
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from testing.servers import RedisServer, free_port
from testing.waiting import wait_until
from tests.worker.shop import LASTING, Shop, WorkerProcess, at_gate, waiting


def fetch(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type", ""), answer.read().decode()
    finally:
        connection.close()


def values(port: int, name: str, label: str = "") -> dict[str, float]:
    """The samples of a name that are not 0, by the value of a label."""
    return {
        sample.labels.get(label, ""): sample.value
        for family in text_string_to_metric_families(fetch(port)[2])
        for sample in family.samples
        if sample.name == name and sample.value
    }


def served(shop: Shop, **settings: Any) -> tuple[WorkerProcess, int]:
    port = free_port()
    return shop.start(metrics_port=port, **settings).reads(), port


def test_deliveries_executions_and_dead_letters_of_a_worker(shop: Shop) -> None:
    entry = shop.submit("good")
    shop.submit("good")
    shop.submit("bad", {"do": "reject"})
    shop.submit("worse", {"do": "fail"})
    shop.redis.xadd(shop.stream, {"no": "command"})
    worker, port = served(shop, max_attempts=2, name="eu-1", concurrency=1)
    shop.done()
    assert values(port, "oncegate_deliveries_total", "decision") == {"run": 4, "duplicate": 1}
    assert values(port, "oncegate_executions_total", "outcome") == {"succeeded": 1, "failed": 3}
    assert values(port, "oncegate_execution_seconds_count", "consumer") == {"commands": 4}
    letters = {"rejected": 1, "exhausted": 1, "undecodable": 1}
    assert values(port, "oncegate_dead_letters_total", "reason") == letters
    assert values(port, "oncegate_build_info") == {"": 1}
    page = fetch(port)[2]
    assert "worse" not in page
    assert entry.decode() not in page
    assert all(letter["dead.worker"].startswith(f"eu-1/{worker.pid}-") for letter in shop.letters())


def test_what_a_worker_executes_and_what_waits_for_the_cache(own_shop: Shop, own_redis: RedisServer) -> None:
    own_shop.submit("k", at_gate(own_shop))
    _, port = served(own_shop, settings={"cache_timeout": 0.3, **LASTING})
    wait_until(lambda: waiting(own_shop) == 1, "it is executed")
    assert values(port, "oncegate_executions_in_flight", "consumer") == {"commands": 1}
    assert values(port, "oncegate_execution_outcomes_waiting") == {}
    own_redis.stop()
    own_shop.gate.touch()
    wait_until(lambda: values(port, "oncegate_execution_outcomes_waiting") == {"": 1}, "its outcome waits")
    assert json.loads(fetch(port, "/healthz")[2]) == {"status": "up"}
    own_redis.start()
    wait_until(lambda: values(port, "oncegate_execution_outcomes_waiting") == {}, "its outcome is written")
    own_shop.done()
    assert values(port, "oncegate_executions_in_flight", "consumer") == {}


def test_the_pages(shop: Shop) -> None:
    worker, port = served(shop)
    assert fetch(port)[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")
    kind = "application/openmetrics-text; version=1.0.0"
    assert fetch(port, accept=kind)[1].startswith(kind)
    assert fetch(port, "/healthz") == (200, "application/json", '{"status":"up"}')
    assert fetch(port, "/healthz", "HEAD") == (200, "application/json", "")
    assert fetch(port, "/")[0] == 404
    assert fetch(port, "/metrics", "POST")[0] == 405
    with socket.create_connection(("127.0.0.1", port)) as idle:  # holds up no stop
        idle.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        assert worker.stop() == 0


def test_a_port_that_is_taken_ends_it_in_one_line(shop: Shop) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = shop.start(metrics_port=port)
        assert worker.code() == 1
    line = f"oncegate: can't listen on 127.0.0.1:{port} (worker.metrics_port): Address already in use\n"
    assert worker.text().endswith(line)


def test_without_a_port_nothing_is_served(shop: Shop) -> None:
    worker = shop.start().reads()
    listening = {
        line.split()[9] for line in Path(f"/proc/{worker.pid}/net/tcp").read_text().splitlines() if " 0A " in line
    }
    open_files = {str(each.readlink()) for each in Path(f"/proc/{worker.pid}/fd").iterdir()}
    assert not {f"socket:[{inode}]" for inode in listening} & open_files
