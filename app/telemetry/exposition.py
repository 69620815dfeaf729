"""Numbers in shared memory as families of metrics, and those as the page that Prometheus reads."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from oncegate.app.telemetry.columns import Histogram, SharedNumbers
from oncegate.prometheus.families import COUNTERS, GAUGES, HISTOGRAMS

OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"


def counter(numbers: SharedNumbers, name: str, columns: Mapping[Any, int]) -> Metric:
    """A family with a column for each value of its one label, or for each tuple of values."""
    meaning, labels = COUNTERS[name]
    family = CounterMetricFamily(f"oncegate_{name}", meaning, labels=labels)
    for values, column in columns.items():
        family.add_metric([values] if isinstance(values, str) else list(values), numbers.total(column))
    return family


def histogram(numbers: SharedNumbers, name: str, histograms: Mapping[str, Histogram]) -> Metric:
    """A family with a histogram for each value of its one label."""
    meaning, label, _ = HISTOGRAMS[name]
    family = HistogramMetricFamily(f"oncegate_{name}_seconds", meaning, labels=[label])
    for value, each in histograms.items():
        buckets, total = each.read(numbers)
        family.add_metric([value], buckets, total)
    return family


def gauge(name: str, value: float | None = None) -> GaugeMetricFamily:
    """A family with ``value``, or with what is to be added by its labels."""
    meaning, labels, _ = GAUGES[name]
    return GaugeMetricFamily(f"oncegate_{name}", meaning, value=value, labels=labels or None)


def page_of(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The metrics of ``registry`` in the format that ``accept`` asks for, and its content type."""
    # Only the format is the client's choice: prometheus-client fails on a version that is no number, and echoes others.
    encode, content_type = choose_encoder(OPENMETRICS if OPENMETRICS.partition(";")[0] in accept.lower() else "")
    return encode(registry), content_type
