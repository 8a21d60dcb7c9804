"""Every Prometheus metric of the project, declared once."""

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily

from slipstream.telemetry.logs import Log

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
RATIOS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 4, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of the table: a Prometheus name without its `slipstream_` prefix.

    A tally is a histogram that is given how many observations there were of each value.
    """

    kind: Literal["counter", "gauge", "histogram", "tally"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


TABLE: dict[str, Metric] = {
    # every pod
    "wait_seconds": Metric(
        kind="histogram", help="Time spent waiting, by what for.", labels=("what",), buckets=SECONDS
    ),
    # learner
    "policy_version": Metric(kind="gauge", help="Policy version: optimizer batches trained on."),
    "staleness_versions": Metric(
        kind="tally", help="Age in versions of trained tokens at consumption.", buckets=VERSIONS
    ),
    "tokens_trained_total": Metric(
        kind="counter",
        help="Tokens that took part in a loss, by age and sign of the advantage.",
        labels=("staleness", "sign"),
    ),
    "tokens_masked_total": Metric(
        kind="counter", help="Sampled tokens without gradient, by reason.", labels=("reason",)
    ),
    "sequences_too_long_total": Metric(
        kind="counter", help="Sequences left out of training because they do not fit into a row."
    ),
    "clipped_tokens_total": Metric(
        kind="counter",
        help="Trained tokens on which an end of the band took effect, by side, age and sign.",
        labels=("side", "staleness", "sign"),
    ),
    "out_of_band_tokens_total": Metric(
        kind="counter",
        help="Trained tokens whose ratio was outside the band, by side, age and sign.",
        labels=("side", "staleness", "sign"),
    ),
    "zero_gradient_tokens_total": Metric(
        kind="counter", help="Trained tokens without gradient, by age and sign.", labels=("staleness", "sign")
    ),
    "dropped_tokens_total": Metric(
        kind="counter",
        help="Trained tokens that a correction or a selection dropped, by age and sign.",
        labels=("staleness", "sign"),
    ),
    **{
        name: Metric(kind="gauge", help=f"{text}, last step, by age and sign.", labels=("staleness", "sign"))
        for name, text in {
            "ratio_mean": "Mean of the ratio that the objective bounds",
            "ratio_p99": "99th percentile of that ratio",
            "ratio_max": "Largest such ratio",
            "log_ratio_mean": "Mean log ratio in nats",
            "log_ratio_squared_mean": "Mean squared log ratio in nats^2",
            "kl_rollout": "KL(rollout || current) in nats a token, estimated by k3",
            "kl_reference": "KL(current || reference) in nats a token, estimated by k3",
            "router_shift_mean": "rspo's weight by the shift of the routers, 1 where they rest",
            "effective_sample_size": "Share of the tokens that the ratios leave effective",
            "effective_sample_size_correction": "Share of the tokens that the corrections leave effective",
            "effective_weight_mean": "Mean factor of the advantage in the gradient",
            "damped_fraction": "Share of tokens whose soft weight is nearly closed",
        }.items()
    },
    "diversity": Metric(kind="gauge", help="Diversity of the last batch, by metric.", labels=("metric",)),
    "collapse_alarm": Metric(
        kind="gauge", help="1 while entropy, distinct n-grams and the spread of rewards have fallen together."
    ),
    "ratio": Metric(
        kind="tally",
        help="Ratio of trained tokens to the policy that sampled them.",
        buckets=RATIOS,
    ),
    "reward_mean": Metric(
        kind="gauge",
        help="Mean reward generated since the last step, by component.",
        labels=("reward",),
    ),
    "gradient_norm": Metric(kind="gauge", help="Global gradient norm before clipping, last step."),
    "learning_rate": Metric(kind="gauge", help="Learning rate of the last step."),
    "value_loss": Metric(kind="gauge", help="Mean value loss of the critic over trained tokens, last step."),
    "explained_variance": Metric(
        kind="gauge", help="Share of the variance of returns that the critic had foreseen, last step."
    ),
    "value_clip_fraction": Metric(
        kind="gauge", help="Share of trained tokens whose value the clip kept still, last step."
    ),
    "critic_gradient_norm": Metric(
        kind="gauge", help="Gradient norm of the critic before clipping, last step."
    ),
    "bad_steps_total": Metric(kind="counter", help="Steps skipped because loss or gradient was not finite."),
    "held_out_accuracy": Metric(kind="gauge", help="Held-out accuracy of the last evaluation."),
    "step_seconds": Metric(
        kind="histogram", help="Time of a training step, by phase.", labels=("phase",), buckets=SECONDS
    ),
    "publish_seconds": Metric(
        kind="histogram", help="Time of a weight update, by phase.", labels=("phase",), buckets=SECONDS
    ),
    "publish_failures_total": Metric(kind="counter", help="Weight updates that had to be tried again."),
    "fleet_epoch": Metric(kind="gauge", help="Membership epoch of the weight group."),
    "fleet_workers": Metric(kind="gauge", help="Workers in the fleet."),
    # rollout
    "tokens_generated_total": Metric(kind="counter", help="Tokens sampled by the engine."),
    "completions_total": Metric(
        kind="counter", help="Completions, by finish reason.", labels=("finish_reason",)
    ),
    "completion_versions": Metric(
        kind="histogram", help="Policy versions that one completion carries.", buckets=(1, 2, 3, 4, 6, 8, 16)
    ),
    "version_served": Metric(
        kind="gauge", help="Policy version that this worker serves; -1 before the first."
    ),
    "update_pause_seconds": Metric(
        kind="histogram", help="Time for which generation stood still for an update.", buckets=SECONDS
    ),
    "groups_running": Metric(kind="gauge", help="Groups being generated by this worker."),
    "drained_groups_total": Metric(
        kind="counter",
        help="Groups that a stopping worker finished, or returned, by outcome.",
        labels=("outcome",),
    ),
    "groups_lost_total": Metric(
        kind="counter", help="Groups that this worker could not hand in, by reason.", labels=("reason",)
    ),
    # verifier
    "scores_total": Metric(
        kind="counter",
        help="Reward components computed, by reward and outcome.",
        labels=("reward", "outcome"),
    ),
    "score_seconds": Metric(
        kind="histogram", help="Time to score one group.", buckets=(0.0005, 0.001, 0.0025, *SECONDS)
    ),
    # replay
    "ledger_groups": Metric(
        kind="gauge", help="Groups in the ledger, by state and reason.", labels=("state", "reason")
    ),
    "prompts_skipped": Metric(
        kind="gauge", help="Prompts passed over when their turn came, by reason.", labels=("reason",)
    ),
    "ledger_residual": Metric(kind="gauge", help="What the ledger cannot account for; 0, or there is a bug."),
    "ledger_tokens": Metric(kind="gauge", help="Tokens in the ledger, by state.", labels=("state",)),
    "admission_free": Metric(kind="gauge", help="Groups that may be started at the announced version."),
    "announced_version": Metric(kind="gauge", help="Policy version last announced to replay."),
}


class Tally:
    """A histogram that takes any number of equal observations at the cost of one."""

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
        """`amount` observations of `value`."""
        with self._lock:
            self._amounts[bisect_left(self._bounds, value)] += amount
            self._sum += value * amount

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """What the registry asks for when the page is read, in another thread."""
        with self._lock:
            totals, total = list(accumulate(self._amounts)), self._sum
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], list(zip(names, totals, strict=True)), total)
        yield family


Instrument = Counter | Gauge | Histogram | Tally


class Metrics:
    """The metrics of one pod, in a registry of its own; a name that is not in TABLE is a KeyError."""

    def __init__(self, *, long_wait_seconds: float = 10.0, log: Log | None = None) -> None:
        self.registry = CollectorRegistry()
        self._long_wait_seconds = long_wait_seconds
        self._log = log
        self._made: dict[str, Instrument] = {}

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""
        metric = self._metric(name, Counter, labels)
        assert isinstance(metric, Counter)
        metric.inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        metric = self._metric(name, Gauge, labels)
        assert isinstance(metric, Gauge)
        metric.set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add one observation to a histogram."""
        metric = self._metric(name, Histogram, labels)
        assert isinstance(metric, Histogram)
        metric.observe(value)

    def observe_counts(self, name: str, counts: Mapping[float, int]) -> None:
        """Add many observations to a tally: value → how many."""
        metric = self._metric(name, Tally, {})
        assert isinstance(metric, Tally)
        for value, count in counts.items():
            metric.add(value, count)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Measure a wait; a long one gets a log line (invariant 10)."""
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
        """Measure a block into a histogram of seconds."""
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
