"""The columns of what a process has under way, which is lost with it, and of what has been lost so."""
# Compiled: docs/decisions/0012-compiled.md

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from oncegate.app.telemetry.columns import Columns, Level
from oncegate.app.telemetry.exposition import counter, gauge
from oncegate.app.telemetry.shared_numbers import SharedNumbers

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

    def of_the_moment(self, numbers: SharedNumbers, readers_dropped: int) -> Iterator[Metric]:
        """The families of what is under way, and of what was lost. ``readers_dropped`` is the column of their number."""
        total = numbers.total
        yield gauge("attempts_in_flight", total(self.in_flight.column))
        yield gauge("buffered_bytes", total(self.buffered.column))
        yield gauge("unread_bytes", total(self.unread.column))
        yield gauge("tunnels", total(self.tunnels.column))
        yield counter(numbers, "readers_dropped", {(): readers_dropped})
        yield gauge("outcomes_waiting", total(self.waiting.column))
        yield counter(numbers, "worker_deaths", {(): self.deaths})
        yield counter(numbers, "attempts_lost", {(): self.died_with})
