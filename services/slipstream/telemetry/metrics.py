"""The Prometheus metrics of one pod, as the table declares them."""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from slipstream.telemetry.logs import Log
from slipstream.telemetry.table import RATIOS, SECONDS, TABLE, VERSIONS, Metric

__all__ = ["RATIOS", "SECONDS", "TABLE", "VERSIONS", "Metric", "Metrics", "Tally"]


class Tally:
    """A histogram that counts any number of equal observations in one call."""

    def __init__(self, name: str, row: Metric, registry: CollectorRegistry) -> None:
        assert not row.labels, f"{name}: a tally has no labels"
        self._name = name
        self._help = row.help
        self._bounds = row.buckets
        self._amounts = [0] * (len(row.buckets) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()
        registry.register(self)

    def add(self, value: float, amount: int) -> None:
        """Add `amount` observations of `value`."""
        with self._lock:
            self._amounts[bisect_left(self._bounds, value)] += amount
            self._sum += value * amount

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the current values. The registry calls this from another thread at each scrape."""
        with self._lock:
            totals, total = list(accumulate(self._amounts)), self._sum
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], list(zip(names, totals, strict=True)), total)
        yield family


class CallbackGauge:
    """A gauge with one label whose values a callback returns at each scrape."""

    def __init__(self, name: str, row: Metric, registry: CollectorRegistry) -> None:
        assert row.kind == "gauge", f"{name} is a {row.kind}"
        assert len(row.labels) == 1, f"{name}: a callback gauge has one label"
        self._name = name
        self._row = row
        self.read: Callable[[], Mapping[str, float]] = dict
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current values. The registry calls this from another thread at each scrape."""
        family = GaugeMetricFamily(self._name, self._row.help, labels=self._row.labels)
        for value, number in self.read().items():
            family.add_metric([value], number)
        yield family


Instrument = Counter | Gauge | Histogram | Tally


class Metrics:
    """The metrics of one pod, in a registry of its own. Errors: KeyError for a name that is not in TABLE."""

    def __init__(self, *, long_wait_seconds: float = 10.0, log: Log | None = None) -> None:
        self.registry = CollectorRegistry()
        self._long_wait_seconds = long_wait_seconds
        self._log = log
        self._made: dict[str, Instrument] = {}
        self._callback_gauges: dict[str, CallbackGauge] = {}

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        metric = self._metric(name, Counter, labels)
        assert isinstance(metric, Counter)
        metric.inc(amount)

    def total(self, name: str) -> float:
        """Return the sum of a counter over its labels."""
        if name not in self._made:
            return 0.0
        return sum(
            sample.value
            for family in self._made[name].collect()
            for sample in family.samples
            if sample.name == f"slipstream_{name}"
        )

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        metric = self._metric(name, Gauge, labels)
        assert isinstance(metric, Gauge)
        metric.set(value)

    def change(self, name: str, amount: float) -> None:
        """Add to a gauge without labels; the amount may be negative."""
        metric = self._metric(name, Gauge, {})
        assert isinstance(metric, Gauge)
        metric.inc(amount)

    def follow(self, name: str, read: Callable[[], Mapping[str, float]]) -> None:
        """Set the callback of a gauge with one label: it returns label value → number at each scrape.

        The callback runs in another thread. A later call replaces it.
        """
        if name not in self._callback_gauges:
            self._callback_gauges[name] = CallbackGauge(f"slipstream_{name}", TABLE[name], self.registry)
        self._callback_gauges[name].read = read

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one observation to a histogram."""
        metric = self._metric(name, Histogram, labels)
        assert isinstance(metric, Histogram)
        metric.observe(value)

    def observe_counts(self, name: str, counts: Mapping[float, int]) -> None:
        """Add observations to a tally: value → number of observations."""
        metric = self._metric(name, Tally, {})
        assert isinstance(metric, Tally)
        for value, count in counts.items():
            metric.add(value, count)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Measure a wait in the histogram wait_seconds; log a long one (invariant 10)."""
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self.observe("wait_seconds", seconds, what=what)
            if self._log is not None and seconds > self._long_wait_seconds:
                self._log.warning("long wait", what=what, seconds=round(seconds, 1))

    @contextmanager
    def timing(self, name: str, **labels: str) -> Iterator[None]:
        """Measure the duration of a block in a histogram of seconds."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.observe(name, time.monotonic() - started, **labels)

    def _metric(self, name: str, kind: type[Instrument], labels: dict[str, str]) -> Instrument:
        if name not in self._made:
            self._made[name] = _make(name, TABLE[name], self.registry)
        metric = self._made[name]
        assert isinstance(metric, kind), f"{name} is a {TABLE[name].kind}"
        return metric.labels(**labels) if labels and not isinstance(metric, Tally) else metric


def _make(name: str, row: Metric, registry: CollectorRegistry) -> Instrument:
    full = f"slipstream_{name}"
    if row.kind == "counter":
        return Counter(full, row.help, row.labels, registry=registry)
    if row.kind == "gauge":
        return Gauge(full, row.help, row.labels, registry=registry)
    if row.kind == "tally":
        return Tally(full, row, registry)
    return Histogram(full, row.help, row.labels, buckets=row.buckets, registry=registry)
