"""From measured costs to numbers of machines: plain arithmetic, each step a line that a reader can follow.

What is assumed is in `Assumptions`, and what was measured in `Costs`; nothing else goes in.
"""

import math
from dataclasses import dataclass

from loadtests import builds, cost_report
from loadtests.bed import OURS
from loadtests.report import Results, spread

GIB = 1024**3
CLUSTER_MOST = 1000
"""Nodes that a Redis Cluster is meant for at most (Redis Cluster specification: "high performance and linear scalability
up to 1000 nodes")."""


@dataclass(frozen=True)
class Assumptions:
    """What nobody measured here: how the service is used, and what machines it gets."""

    first_share: float = 0.95
    """Of the requests with a key, those that are first requests; the others are replays."""
    busy: float = 0.6
    """How full a core may be: what is above it is room for bursts, and for a neighbour that has failed."""
    node_memory_gib: int = 64
    filled: float = 0.6
    """Of a Redis node's memory, what records may take: the rest is for fragmentation, forks and replication buffers."""
    replicas: int = 1


@dataclass(frozen=True)
class Costs:
    """Measured: CPU in us per request, bytes per record."""

    gateway_first: float
    gateway_replay: float
    redis_first: float
    redis_replay: float
    record_bytes: float

    @classmethod
    def measured(cls, gateway: Results, cost: Results, build: str = builds.SOURCE) -> "Costs":
        """From 32 connections on one core, and from the largest number of records that was looked at."""

        def cpu(mode: str, process: str) -> float:
            return spread(gateway.select(server=OURS[build], mode=mode, connections=32), "cpu_us", process).median

        largest = cost_report.milestones(cost)[-1]
        return cls(
            cpu("first", "server"), cpu("replay", "server"), cpu("first", "redis"), cpu("replay", "redis"),
            largest["redis_bytes_per_record"],
        )  # fmt: skip


@dataclass(frozen=True)
class Need:
    """What a load needs."""

    requests_per_s: float
    ttl_hours: float
    gateway_cores: int
    redis_cores: int
    records: float
    memory_tib: float
    masters: int
    nodes: int
    clusters: int

    @classmethod
    def of(cls, requests_per_s: float, ttl_hours: float, costs: Costs, given: Assumptions) -> "Need":
        """For so many requests with a key per second, their records kept for so long."""
        first, replay = given.first_share, 1 - given.first_share
        gateway_us = first * costs.gateway_first + replay * costs.gateway_replay
        redis_us = first * costs.redis_first + replay * costs.redis_replay
        gateway_cores = math.ceil(requests_per_s * gateway_us / 1e6 / given.busy)
        redis_cores = math.ceil(requests_per_s * redis_us / 1e6 / given.busy)
        records = requests_per_s * first * ttl_hours * 3600
        memory = records * costs.record_bytes
        by_memory = math.ceil(memory / (given.node_memory_gib * GIB * given.filled))
        masters = max(redis_cores, by_memory)
        nodes = masters * (1 + given.replicas)
        return cls(
            requests_per_s, ttl_hours, gateway_cores, redis_cores, records, memory / 1024**4, masters, nodes,
            math.ceil(nodes / CLUSTER_MOST),
        )  # fmt: skip


LOADS = ((1_000, 24.0), (10_000, 24.0), (100_000, 24.0), (1_000_000, 24.0), (1_000_000, 1.0))


def needs(gateway: Results, cost: Results, build: str) -> tuple[Costs, Assumptions, list[Need]]:
    """For each of `LOADS`."""
    costs, given = Costs.measured(gateway, cost, build), Assumptions()
    return costs, given, [Need.of(rate, hours, costs, given) for rate, hours in LOADS]
