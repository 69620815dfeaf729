"""Metrics: what the running gateway tells, that no key and no caller is in it, and that the dashboard asks for what there is.

Rules of docs/contract.md: R6.9, R11.3, R11.15, R11.16, R11.36.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import time
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from oncegate.app.telemetry import logs
from oncegate.app.telemetry.columns import Columns, Histogram, Level, SharedNumbers
from oncegate.app.telemetry.metrics import SPARE_COLUMNS, Metrics
from oncegate.app.telemetry.observers import logged
from oncegate.app.telemetry.pending_records import SLOTS, PendingRecords
from oncegate.cache.record import State
from oncegate.middleware.admission.observe import Observation
from oncegate.middleware.http.enter import Bypass
from oncegate.middleware.rules.policy import compile_policy
from oncegate.middleware.rules.settings import IdempotencySettings
from oncegate.prometheus import ConsumerMetrics, ProjectionMetrics, RelayMetrics
from oncegate.prometheus.families import CACHE_BOUNDS
from testing.served import served
from testing.servers import RedisServer, free_port
from testing.upstreams import OK, PATIENCE, Upstream, answering, resetting_after
from testing.waiting import until

DASHBOARD = Path(__file__).parents[3] / "docs/deploy/grafana.json"
ROUTES = [{"path": "/warned/*", "on_mismatch": "warn"}]

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: httpx.AsyncClient) -> Samples:
    answer = await client.get("/_oncegate/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return sum(value for (found, has), value in samples.items() if found == name and has >= set(labels.items()))


async def until_scraped(client: httpx.AsyncClient, condition: Callable[[Samples], bool]) -> Samples:
    """The first samples of which ``condition`` holds."""

    async def found() -> Samples | None:
        samples = await scrape(client)
        return samples if condition(samples) else None

    samples: Samples = await until(found)
    return samples


async def post(client: httpx.AsyncClient, key: str, path: str = "/payments", body: bytes = b"{}") -> int:
    headers = {"idempotency-key": key, "authorization": "Bearer secret-of-alice"}
    return (await client.post(path, content=body, headers=headers)).status_code


async def test_decisions_attempts_and_latencies_are_counted_by_route() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url, routes=ROUTES) as (client, _):
        assert await post(client, "k-1") == 200
        assert await post(client, "k-1") == 200
        assert await post(client, "k-1", body=b"[]") == 422
        assert await post(client, "k-2", "/warned/a") == 200
        assert await post(client, "k-2", "/warned/a", b"[]") == 200
        await client.post("/payments")
        samples = await scrape(client)
    name = "oncegate_requests_total"
    counted = {labels: value for (found, labels), value in samples.items() if found == name and value}
    assert counted == {
        frozenset({("route", route), ("method", "POST"), ("decision", decision), ("mode", "enforced")}): count
        for route, decision, count in [
            ("*", "first", 1),
            ("*", "replayed", 1),
            ("*", "key-reused", 1),
            ("*", "bypass", 1),
            ("/warned/*", "first", 1),
            ("/warned/*", "replayed", 1),
        ]
    }
    assert of(samples, "oncegate_mismatches_warned_total", route="/warned/*") == 1
    assert of(samples, "oncegate_mismatches_warned_total") == 1
    assert of(samples, "oncegate_attempts_total", outcome="succeeded", route="*") == 1
    assert of(samples, "oncegate_attempts_total") == 2
    assert of(samples, "oncegate_upstream_seconds_count", route="*") == 1
    assert of(samples, "oncegate_cache_seconds_count", operation="claim") == 5
    assert of(samples, "oncegate_cache_seconds_count", operation="complete") == 2
    assert of(samples, "oncegate_attempts_in_flight") == 0
    assert of(samples, "oncegate_memory_cache_bytes") > 0


async def test_a_route_that_no_request_has_matched_is_named() -> None:
    routes: list[dict[str, Any]] = [
        {"path": "/keyless/*"},
        {"path": "/off/*", "methods": []},
        {"path": "/paymets/*", "methods": ["POST", "PUT"]},
        {"path": "/read/*"},
        {"path": "/{any}/deep"},
        {"path": "/upper/*"},
    ]

    def matched(samples: Samples) -> dict[str, float]:
        name = "oncegate_route_matched"
        return {dict(labels)["route"]: value for (found, labels), value in samples.items() if found == name}

    async with Upstream(answering(OK)) as upstream, served(upstream.url, routes=routes) as (client, _):
        assert matched(await scrape(client)) == dict.fromkeys([str(route["path"]) for route in routes], 0.0)
        for path in ("/keyless/1", "/off/1", "/payments/1", "/x/deep", f"/upper/{'x' * 5000}"):
            await client.post(path)
        await client.get("/read/1")  # it is for POST and PATCH
        samples = await scrape(client)
        policy = (await client.get("/_oncegate/policy")).json()
    came = {"/keyless/*": 1, "/off/*": 1, "/paymets/*": 0, "/read/*": 0, "/{any}/deep": 1, "/upper/*": 1}
    assert matched(samples) == came
    assert of(samples, "oncegate_route_matched", route="/{any}/deep", methods="PATCH POST") == 1
    *named, default = policy["routes"]
    assert {route["path"]: int(route["matched"]) for route in named} == came
    assert "matched" not in default


def test_what_one_worker_has_matched_the_others_say_too_and_its_successor() -> None:
    routes, listed = [("/a", ["POST"]), ("*", ["POST"])], [("/a", ["POST"]), ("/b", ["POST"])]
    metrics = Metrics(routes, workers=2)
    metrics.serve("0" * 12, routes, [], {}, {}, listed)
    metrics.enter(0)
    metrics.matches.noting()(0)
    for worker in (1, 0):
        metrics.enter(worker)
        assert [metrics.matches.has_matched(number) for number in (0, 1)] == [True, False]
    metrics.serve("1" * 12, routes, [], {}, {}, [("/c", ["POST"]), *listed])
    assert [metrics.matches.has_matched(number) for number in (0, 1, 2)] == [False, True, False], (
        "by another number after a reload"
    )


async def test_what_is_not_enforced_is_not_counted() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        before = await scrape(client)
        for method in ("GET", "PUT", "DELETE", "OPTIONS"):
            assert (await client.request(method, "/payments")).status_code == 200
        assert await scrape(client) == before


async def test_no_key_no_caller_and_no_path_is_in_the_metrics() -> None:
    async with Upstream(answering(OK)) as upstream, served(upstream.url) as (client, _):
        await post(client, "raw-key-1", "/payments/number-4711")
        await client.request("PATCH", "/x", headers={"idempotency-key": "raw-key-2"})
        text = (await client.get("/_oncegate/metrics")).text
    for secret in ("raw-key", "secret-of", "number-4711", "t9uHGWx"):
        assert secret not in text
    labels = {name for family in text_string_to_metric_families(text) for s in family.samples for name in s.labels}
    assert labels == {"route", "method", "decision", "mode", "outcome", "operation", "le", "version", "digest"}


async def test_what_alerts_are_made_of_is_there_before_it_happens() -> None:
    async with served(f"http://127.0.0.1:{free_port()}", routes=ROUTES) as (client, _):
        samples = await scrape(client)
    for name, labels in [
        (
            "oncegate_requests_total",
            {"decision": "outcome-unknown", "method": "POST", "mode": "enforced", "route": "/warned/*"},
        ),
        (
            "oncegate_requests_total",
            {"decision": "cache-unavailable", "method": "PATCH", "mode": "enforced", "route": "*"},
        ),
        ("oncegate_attempts_total", {"outcome": "unknown", "route": "*"}),
        ("oncegate_worker_deaths_total", {}),
        ("oncegate_attempts_lost_total", {}),
    ]:
        assert samples[name, frozenset(labels.items())] == 0


async def test_an_unknown_outcome_is_counted() -> None:
    async with Upstream(resetting_after()) as upstream, served(upstream.url) as (client, _):
        assert await post(client, "k-1") == 502
        assert await post(client, "k-1") == 409
        samples = await scrape(client)
    assert of(samples, "oncegate_attempts_total", outcome="unknown") == 1
    assert of(samples, "oncegate_requests_total", decision="upstream-failed") == 1
    assert of(samples, "oncegate_requests_total", decision="outcome-unknown") == 1


async def test_a_cache_that_is_away_is_counted() -> None:
    cache = f"redis://127.0.0.1:{free_port()}"
    async with Upstream(answering(OK)) as upstream, served(upstream.url, cache=cache) as (client, _):
        assert await post(client, "k-1") == 503
        samples = await scrape(client)
    assert of(samples, "oncegate_cache_errors_total", operation="claim") == 1
    assert of(samples, "oncegate_requests_total", decision="cache-unavailable") == 1


async def test_what_goes_on_without_a_cache_is_counted_as_a_bypass() -> None:
    cache, rules = f"redis://127.0.0.1:{free_port()}", {"on_cache_down": "fail_open"}
    async with Upstream(answering(OK)) as upstream, served(upstream.url, cache=cache, idempotency=rules) as (client, _):
        assert await post(client, "k-1") == 200
        samples = await scrape(client)
    assert of(samples, "oncegate_requests_total", decision="bypass") == 1
    assert of(samples, "oncegate_requests_total") == 1


async def test_openmetrics_is_told_to_who_asks_for_it() -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        accept = "application/openmetrics-text; version=1.0.0"
        answer = await client.get("/_oncegate/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=a.b", "text/plain; version=\xff", "text/plain; version=9", ";=,;"]
)
async def test_what_can_not_be_asked_for_gets_what_there_is(accept: str) -> None:
    async with served(f"http://127.0.0.1:{free_port()}") as (client, _):
        answer = await client.get("/_oncegate/metrics", headers=[(b"accept", accept.encode("latin-1"))])
    assert answer.status_code == 200
    assert re.search(r"; version=(0\.0\.4|1\.0\.0);", answer.headers["content-type"])


async def test_the_dashboard_shows_what_gateways_consumers_and_relays_count() -> None:
    nowhere, routes = f"127.0.0.1:{free_port()}", [{"path": "/reports", "mode": "either"}]
    async with served(f"http://{nowhere}", cache=f"redis://{nowhere}", routes=routes) as (client, _):
        on_redis = (await client.get("/_oncegate/metrics")).text
    async with Upstream(answering(OK)) as upstream, served(upstream.url, sample_records=600) as (client, _):
        await post(client, "k-1")
        await until_scraped(client, lambda samples: ("oncegate_records", frozenset({("state", "unknown")})) in samples)
        text = on_redis + (await client.get("/_oncegate/metrics")).text + counted_by_consumers_and_relays()
    exposed: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        exposed.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, set())
        for sample in family.samples:
            exposed.setdefault(sample.name, set()).update(sample.labels)
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    assert len(queries) > 15
    used = set()
    for expression in queries:
        for name in re.findall(r"\boncegate_\w+", expression):
            assert name in exposed, expression
            used.add(re.sub(r"_(bucket|sum|count)$", "", name))
        (name, *_) = [*re.findall(r"\boncegate_\w+", expression), ""]
        for label in re.findall(r"by \(([^)]*)\)", expression) + re.findall(r"(\w+)=\"", expression):
            assert {*label.split(", ")} <= exposed.get(name, set()) | {"le"}, expression
    # And nothing that is told is looked at nowhere.
    missing = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in exposed} - used
    assert missing == set()


def counted_by_consumers_and_relays() -> str:
    registry = CollectorRegistry()
    metrics = ConsumerMetrics("billing", registry=registry)
    metrics.inbox_measured("oncegate_inbox", 1, 1.0)
    metrics.markers_pruned("oncegate_inbox", 1)
    metrics.order_measured("billing", 1, 1, 1.0)
    RelayMetrics(registry=registry)
    metrics_of_projections = ProjectionMetrics(registry=registry)
    metrics_of_projections.events_applied("balance.v1", 1)
    metrics_of_projections.projection_measured("balance.v1", 0, None, None)
    return "\n".join(line for line in generate_latest(registry).decode().splitlines() if "_created" not in line) + "\n"


def observation(decision: str = "first", method: str = "POST") -> Observation:
    return Observation(decision, 200, 1, "", "*", method, 0.1)


def test_what_nobody_foresaw_is_other() -> None:
    metrics = Metrics([("*", ("POST",))])
    metrics.observed(observation("a-new-slug"))
    assert 'decision="other",method="POST",mode="enforced",route="*"} 1.0' in metrics.page("")[0].decode()


def test_workers_are_forked_count_apart_and_are_summed() -> None:
    metrics = Metrics([("*", ("POST",))], workers=2)
    for index in (0, 1, 1):  # the last one replaces the one before
        child = os.fork()
        if child == 0:
            metrics.enter(index)
            metrics.observed(observation())
            metrics.attempt_began("*")
            metrics.attempt_settled("*", State.SUCCEEDED, 0.2)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    text = metrics.page("")[0].decode()
    assert 'oncegate_requests_total{decision="first",method="POST",mode="enforced",route="*"} 3.0' in text
    assert 'oncegate_upstream_seconds_count{route="*"} 3.0' in text
    assert "oncegate_attempts_in_flight 2.0" in text, "what a dead worker had under way is gone"


def test_what_a_worker_had_under_way_is_counted_when_it_dies_and_named_where_it_lasted() -> None:
    metrics = Metrics([("*", ("POST",))], workers=2)
    for _ in range(2):  # its successor dies in the same way
        child = os.fork()
        if child == 0:
            metrics.enter(1)
            for record in ("short", "long", "both", "ended"):
                metrics.attempt_began("*")
                if record != "short":
                    metrics.outcome_pending(record)
            metrics.attempt_ended("*")
            metrics.outcome_known("ended")
            metrics.outcome_pending("both")
            metrics.outcome_known("both")
            metrics.outcomes_waiting(1)
            os._exit(1)
        os.waitpid(child, 0)
        assert metrics.worker_died(1) == (4, ["long", "both"])
        assert metrics.worker_died(1) == (0, [])
    assert metrics.worker_died(0) == (0, [])
    text = metrics.page("")[0].decode()
    assert "oncegate_attempts_lost_total 8.0" in text
    assert "oncegate_worker_deaths_total 5.0" in text
    assert "oncegate_attempts_in_flight 0.0" in text
    assert "oncegate_outcomes_waiting 0.0" in text


def test_records_are_named_as_far_as_there_is_room() -> None:
    pending = PendingRecords(2)
    pending.enter(1)
    records = [f"{number:04d}:{'x' * 100}" for number in range(SLOTS + 10)]
    for record in records:
        pending.note(record)
    assert [name[:4] for name in pending.of(1)] == [record[:4] for record in records[:SLOTS]]
    assert pending.of(0) == []
    for record in records:
        pending.drop(record)
    assert pending.of(1) == []
    pending.note("again")
    assert pending.of(1) == ["again"]


async def test_unknown_records_of_the_cache_are_counted_where_that_is_wanted(redis_server: RedisServer) -> None:
    shared: dict[str, Any] = {"cache": redis_server.url, "cache_timeout": 10, "namespace": uuid4().hex}
    async with Upstream(resetting_after()) as upstream, served(upstream.url, **shared) as (client, _):
        for number in range(3):
            assert await post(client, f"k-{number}") == 502
        assert not [name for name, _ in await scrape(client) if name.startswith("oncegate_records")]
        async with served(upstream.url, sample_records=0.05, **shared) as (sampling, _):
            samples = await until_scraped(sampling, lambda found: of(found, "oncegate_records", state="unknown") == 3)
    assert abs(of(samples, "oncegate_records_sampled_timestamp_seconds") - time()) < PATIENCE


@pytest.mark.parametrize("value", [0.0, 0.0001, 0.00011, 2.5, 2.6])
def test_a_bucket_takes_what_does_not_exceed_its_bound(value: float) -> None:
    columns = Columns()
    columns.take(3)
    histogram = Histogram(columns, CACHE_BOUNDS)
    numbers = SharedNumbers(columns.count, 3)
    numbers.take(1)
    histogram.add(numbers.row, value)
    buckets, total = histogram.read(numbers)
    assert total == pytest.approx(value)
    assert [count for _, count in buckets] == [float(value <= bound) for bound in (*CACHE_BOUNDS, float("inf"))]


def test_values_are_counted_as_one_by_one_in_whichever_row() -> None:
    """The bucket of the value before is tried first: bounds, what lies beside them, and rows that take turns."""
    columns = Columns()
    columns.take(3)
    histogram, level = Histogram(columns, CACHE_BOUNDS), Level(columns)
    numbers = SharedNumbers(columns.count, 2)
    random = Random(7)
    values = [random.choice([*CACHE_BOUNDS, 0.0, 2.6, 3 * random.random() ** 4]) for _ in range(3000)]
    for value in values:
        if random.random() < 0.1:
            numbers.take(random.randrange(2))
        histogram.add(numbers.row, value)
        level.change(numbers.row, value)
    buckets, total = histogram.read(numbers)
    bounds = [float(bound) for bound in CACHE_BOUNDS] + [float("inf")]
    assert [count for _, count in buckets] == [sum(value <= bound for value in values) for bound in bounds]
    assert total == pytest.approx(sum(values))
    assert numbers.total(level.column) == pytest.approx(sum(values))


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", {"first", "key-reused"}), ("info", {"key-reused"}), ("warning", set())]
)
def test_usual_decisions_have_lines_at_debug_alone(level: str, shown: set[str]) -> None:
    root, requests = logging.getLogger(), logging.getLogger("oncegate.request")
    before = root.handlers[:], root.level, requests.level, logging.getLogger("uvicorn.error").level
    lines: list[str] = []
    request = Bypass(None, compile_policy(IdempotencySettings()), {"headers": []}, [])

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    try:
        for each in ("error", level):  # the second one by a reload
            logs.configure(each)
        root.handlers[:] = [Kept()]
        for decision in ("first", "key-reused"):
            logged(observation(decision), request)
    finally:
        root.handlers[:], root.level, requests.level, logging.getLogger("uvicorn.error").level = before
        logging.getLogger().setLevel(before[1])  # what loggers keep of levels is forgotten
    assert {line.partition(" ")[0] for line in lines} == shown


async def test_outcomes_that_wait_for_the_cache_are_counted() -> None:
    """A Redis that goes away while the upstream works, and comes back."""
    release = asyncio.Event()
    slow = answering(OK, after=release)
    with RedisServer(persist=True) as redis:
        async with Upstream(slow) as upstream, served(upstream.url, cache=redis.url, cache_timeout=10) as (client, _):
            first = asyncio.create_task(post(client, "k-1"))
            await upstream.received(1)
            assert of(await scrape(client), "oncegate_attempts_in_flight") == 1
            redis.stop()
            release.set()
            assert await first == 200
            assert of(await scrape(client), "oncegate_outcomes_waiting") == 1
            redis.start()
            await until_scraped(client, lambda found: not of(found, "oncegate_outcomes_waiting"))
            assert await post(client, "k-1") == 200
            samples = await scrape(client)
    assert of(samples, "oncegate_requests_total", decision="replayed") == 1
    assert of(samples, "oncegate_cache_errors_total", operation="complete") >= 1


@pytest.mark.parametrize("what", ["routes", "methods", "submissions", "listed"])
def test_there_is_room_for_exactly_what_can_be_served(what: str) -> None:
    """Of each kind that takes columns: what it says there is room for can be counted, up to the last column, and no more."""
    known, left = ("/known", ("POST",)), 500

    def given(count: int) -> tuple[list[tuple[str, Sequence[str]]], list[str], list[tuple[str, Sequence[str]]]]:
        routes: list[tuple[str, Sequence[str]]] = [known]
        many = [f"{number:x}" for number in range(count)]
        if what == "routes":
            routes += [(f"/{each}", ("POST",)) for each in many]
        elif what == "methods":
            routes += [("/known", many), ("/known", many)]
        return routes, many if what == "submissions" else [], [known] * count if what == "listed" else [known]

    def serve(count: int) -> tuple[bool, bool]:
        """Whether there is said to be room, and whether there is."""
        metrics = Metrics([known])
        metrics.serve("0", [known], (), {}, {}, [("/gone", ("POST",))] * (SPARE_COLUMNS - left))
        routes, submissions, listed = given(count)
        has_room = metrics.has_room(routes, submissions, listed)
        try:
            metrics.serve("0", routes, submissions, {}, {}, listed)
            for _ in metrics.collect():
                pass
        except IndexError:
            return has_room, False
        return has_room, True

    low, high = 0, 2 * left  # below which there is room, from which on there is none
    assert (serve(low), serve(high)) == ((True, True), (False, False))
    while high - low > 1:
        middle = (low + high) // 2
        promised, is_so = serve(middle)
        assert promised == is_so, f"{middle} {what}"
        low, high = (middle, high) if is_so else (low, middle)
