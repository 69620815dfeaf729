"""The columns of what a process has under way, which is lost with it, of what has been lost so, and of what happens seldom."""
# Compiled: docs/decisions/0012-compiled.md

from collections import Counter
from collections.abc import Iterator
from time import time
from typing import Final

from prometheus_client.core import Metric

from oncegate.app.telemetry.columns import Columns, Level, SharedNumbers
from oncegate.app.telemetry.exposition import counter, gauge
from oncegate.cache.record import State
from oncegate.prometheus.families import RELOADS

DIGEST_DIGITS: Final = 12
"""Hexadecimal digits of a configuration's digest: a double holds 53 bits."""


class ProcessColumns:
    """The columns of attempts ``in_flight``, outcomes ``waiting`` for the cache, bytes ``buffered`` and ``unread``, and
    ``tunnels``; the digest of the ``configuration``; processes' ``deaths``, and the outcomes that they ``died_with``.
    """

    __slots__ = ("buffered", "configuration", "deaths", "died_with", "in_flight", "tunnels", "unread", "waiting")

    def __init__(self, columns: Columns) -> None:
        self.in_flight, self.waiting = Level(columns), Level(columns)
        self.buffered, self.unread, self.tunnels = Level(columns), Level(columns), Level(columns)
        self.configuration, self.deaths, self.died_with = columns.take(), columns.take(), columns.take()

    def begin(self, row: "memoryview[float]", configuration: float) -> None:
        """A process that goes by ``configuration`` counts in ``row`` from now on: it has nothing under way."""
        for level in (self.in_flight, self.waiting, self.buffered, self.unread, self.tunnels):
            row[level.column] = 0
        row[self.configuration] = configuration

    def end(self, row: "memoryview[float]") -> int:
        """The process of ``row`` has died: how many outcomes were lost with it."""
        lost = int(row[self.in_flight.column] + row[self.waiting.column])
        row[self.deaths] += 1
        row[self.died_with] += lost
        self.begin(row, 0)
        return lost

    def of_configurations(self, numbers: SharedNumbers) -> Metric:
        """The family of the configurations that processes go by."""
        family = gauge("config_info")
        for digest, processes in sorted(Counter(numbers.column(self.configuration)).items()):
            if digest:
                family.add_metric([f"{int(digest):0{DIGEST_DIGITS}x}"], processes)
        return family

    def of_the_moment(self, numbers: SharedNumbers) -> Iterator[Metric]:
        """The families of what is under way, and of what was lost."""
        total = numbers.total
        yield gauge("attempts_in_flight", total(self.in_flight.column))
        yield gauge("buffered_bytes", total(self.buffered.column))
        yield gauge("unread_bytes", total(self.unread.column))
        yield gauge("tunnels", total(self.tunnels.column))
        yield gauge("outcomes_waiting", total(self.waiting.column))
        yield counter(numbers, "worker_deaths", {(): self.deaths})
        yield counter(numbers, "attempts_lost", {(): self.died_with})


class EventColumns:
    """The columns of ``reloads`` by outcome, of ``logins_refused``, of lines of the access log and readers that were dropped."""

    __slots__ = ("lines_dropped", "logins_refused", "readers_dropped", "reloads")

    def __init__(self, columns: Columns) -> None:
        self.reloads = {outcome: columns.take() for outcome in RELOADS}
        self.logins_refused, self.lines_dropped, self.readers_dropped = (columns.take() for _ in range(3))

    def families(self, numbers: SharedNumbers) -> Iterator[Metric]:
        """The families of all of them."""
        yield counter(numbers, "reloads", self.reloads)
        yield counter(numbers, "logins_refused", {(): self.logins_refused})
        yield counter(numbers, "access_log_dropped", {(): self.lines_dropped})
        yield counter(numbers, "readers_dropped", {(): self.readers_dropped})


class SampleColumns:
    """The columns of how many records read unknown, and of when they were counted."""

    __slots__ = ("_at", "_unknown")

    def __init__(self, columns: Columns) -> None:
        self._unknown, self._at = columns.take(), columns.take()

    def note(self, row: "memoryview[float]", unknown: int) -> None:
        """They were counted now."""
        row[self._unknown], row[self._at] = unknown, time()

    def families(self, numbers: SharedNumbers) -> Iterator[Metric]:
        """The families of both; without a number until they were counted, since none would be a statement."""
        at = numbers.total(self._at)
        unknown, when = gauge("records"), gauge("records_sampled_timestamp_seconds")
        if at:
            unknown.add_metric([State.UNKNOWN.value], numbers.total(self._unknown))
            when.add_metric([], at)
        yield unknown
        yield when
