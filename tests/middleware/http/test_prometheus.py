"""What an app tells Prometheus of its middleware: the gateway's metrics, in prometheus-client's own registries.

Rules of docs/contract.md: R12.10.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from oncegate import Observation, Route
from oncegate.app.telemetry.metrics import Metrics
from oncegate.middleware.rules.settings import DEFAULT_METHODS
from oncegate.prometheus import ConsumerMetrics, MiddlewareMetrics, ProjectionMetrics, RelayMetrics
from oncegate.prometheus.families import COUNTERS, GAUGES, HISTOGRAMS
from tests.middleware.conftest import MakeDoor
from tests.middleware.door import Answering

ALERTS = Path(__file__).parents[3] / "docs/deploy/alerts.yaml"
ROUTES = [Route(path="/payments/*", methods=["POST", "PUT"], on_mismatch="warn"), Route(path="/hooks/*", methods=[])]
OF_THE_GATEWAY = {
    "oncegate_access_log_dropped",
    "oncegate_attempts_lost",
    "oncegate_config_info",
    "oncegate_enforced_percent",
    "oncegate_logins_refused",
    "oncegate_records",
    "oncegate_records_sampled_timestamp_seconds",
    "oncegate_reloads",
    "oncegate_route_matched",
    "oncegate_shadowed",
    "oncegate_submissions",
    "oncegate_tunnels",
    "oncegate_worker_deaths",
}
"""What an app has not: an access log, reloads, shares of its routes, logins, submissions, tunnels, workers that somebody looks
after, samples of the cache; and its routes are compared with its paths at the start.
"""
_CONSUMERS = CollectorRegistry()
ConsumerMetrics(registry=_CONSUMERS)
RelayMetrics(registry=_CONSUMERS)
ProjectionMetrics(registry=_CONSUMERS)
OF_CONSUMERS = {family.name for family in _CONSUMERS.collect()}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def samples(registry: CollectorRegistry) -> Samples:
    return _samples(text_string_to_metric_families(generate_latest(registry).decode()))


def _samples(families: Iterable[Metric]) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_names_meanings_labels_and_series_are_the_gateway_s(registry: CollectorRegistry) -> None:
    MiddlewareMetrics(routes=ROUTES, registry=registry)
    gateway = Metrics([*((route.path, route.methods) for route in ROUTES), ("*", DEFAULT_METHODS)])
    theirs = {family.name: family for family in gateway.collect()}
    ours = {family.name: family for family in registry.collect()}
    assert set(theirs) - set(ours) == OF_THE_GATEWAY
    assert set(ours) <= set(theirs)
    for name, family in ours.items():
        assert (family.type, family.documentation) == (theirs[name].type, theirs[name].documentation)
        assert _samples([family]) == _samples([theirs[name]]), name


def test_every_metric_of_the_table_is_counted_by_somebody_and_there_is_no_other(registry: CollectorRegistry) -> None:
    limits = ("attempts_limit", "buffered_limit_bytes", "unread_limit_bytes")
    read = dict.fromkeys(
        (
            *(*limits, "memory_cache_bytes", "memory_cache_limit_bytes", "cache_readable", "cache_writable"),
            "tls_cert_ends_timestamp_seconds",
        ),
        float,
    )
    gateway = Metrics([("*", DEFAULT_METHODS)], gauges=read)
    MiddlewareMetrics(registry=registry)
    counted = {family.name for family in (*gateway.collect(), *registry.collect())} | OF_CONSUMERS
    assert counted == {
        *(f"oncegate_{name}" for name in (*COUNTERS, *GAUGES)),
        *(f"oncegate_{name}_seconds" for name in HISTOGRAMS),
    }


def test_what_alerts_are_made_of_is_there_before_anything_happens(registry: CollectorRegistry) -> None:
    MiddlewareMetrics(routes=ROUTES, registry=registry)
    found = samples(registry)
    rules = [rule["expr"] for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"] for rule in group["rules"]]
    names = {name for rule in rules for name in re.findall(r"\boncegate_\w+", rule)}
    there = {name for name, _ in found}
    others = OF_THE_GATEWAY | OF_CONSUMERS | {"oncegate_cache_writable", "oncegate_tls_cert_ends_timestamp_seconds"}
    assert {name.removesuffix("_total") for name in names - there} <= others
    assert set(found.values()) == {0.0, 1.0}, "1 is the version's"
    for decision in ("outcome-unknown", "cache-unavailable", "overloaded", "record-unreadable"):
        assert (
            value(
                found, "oncegate_requests_total", route="/payments/*", method="PUT", mode="enforced", decision=decision
            )
            == 0
        )


async def test_requests_attempts_and_the_cache_are_counted_by_route(
    door: MakeDoor, registry: CollectorRegistry
) -> None:
    metrics = MiddlewareMetrics(routes=ROUTES, registry=registry)
    there = door(Answering(201, 201, 429), routes=ROUTES, observe=metrics.observed, watch=metrics)
    for body in (b"a", b"a", b"other"):
        assert (await there.send(body, path="/payments/1")).status == 201
    assert (await there.send(path="/elsewhere/of-alice", key=None)).status == 201
    assert (await there.send(path="/elsewhere/of-bob", key="k-2")).status == 429
    assert (await there.send(path="/hooks/1")).status == 429
    found = samples(registry)
    name = "oncegate_requests_total"
    counted = {
        f"{dict(labels)['route']} {dict(labels)['decision']}": count
        for (found_name, labels), count in found.items()
        if found_name == name and count
    }
    assert counted == {"/payments/* first": 1, "/payments/* replayed": 2, "* bypass": 1, "* first": 1}
    assert value(found, "oncegate_mismatches_warned_total", route="/payments/*") == 1
    assert value(found, "oncegate_attempts_total", route="/payments/*", outcome="succeeded") == 1
    assert value(found, "oncegate_attempts_total", route="*", outcome="released") == 1
    assert value(found, "oncegate_upstream_seconds_count", route="*") == 1
    assert value(found, "oncegate_cache_seconds_count", operation="claim") == 4
    assert value(found, "oncegate_attempts_in_flight") == 0
    assert "alice" not in generate_latest(registry).decode()


def test_a_decision_that_nobody_knows_makes_no_series_of_its_own(registry: CollectorRegistry) -> None:
    metrics = MiddlewareMetrics(registry=registry)
    for name in ("one", "two"):
        metrics.observed(Observation(name, 500, 0, "", "*", "POST", 0.1))
    assert (
        value(samples(registry), "oncegate_requests_total", route="*", method="POST", mode="enforced", decision="other")
        == 2
    )


def test_what_is_passed_is_looked_at(registry: CollectorRegistry) -> None:
    wrong: Any = ["/payments"]
    with pytest.raises(TypeError, match=r"^routes\[0\] is a str"):
        MiddlewareMetrics(routes=wrong, registry=registry)


WORKER = """
from oncegate import Observation
from oncegate.prometheus import MiddlewareMetrics

metrics = MiddlewareMetrics()
metrics.observed(Observation("first", 201, 1, "", "*", "POST", 0.1))
metrics.attempt_began("*")
"""
COLLECT = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_several_processes_are_summed(tmp_path: Path) -> None:
    def run(code: str) -> str:
        environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for _ in range(2):
        run(WORKER)
    found = _samples(text_string_to_metric_families(run(COLLECT)))
    assert value(found, "oncegate_requests_total", route="*", method="POST", mode="enforced", decision="first") == 2
    assert (
        value(found, "oncegate_requests_total", route="*", method="POST", mode="enforced", decision="overloaded") == 0
    )
    assert value(found, "oncegate_attempts_total", route="*", outcome="unknown") == 0
    assert value(found, "oncegate_attempts_in_flight") == 2
