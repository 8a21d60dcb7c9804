"""Prometheus metrics of the loss, by staleness and by the sign of the advantage."""

import math
from collections.abc import Mapping
from typing import Final

from slipstream.algorithms.staleness import BUCKETS
from slipstream.telemetry.metrics import Metrics

SIGNS: Final = {"positive": "_positive", "negative": "_negative", "zero": "_zero"}
"""Label, and suffix of the metric in metrics.jsonl. Each trained token has one of the three."""

TOKEN_SHARES: Final = {
    "zero_gradient_tokens_total": "zero_gradient_fraction",
    "dropped_tokens_total": "dropped_fraction",
}
SIDE_SHARES: Final = {
    "clipped_tokens_total": "clip_fraction",
    "out_of_band_tokens_total": "out_of_band_fraction",
}
GAUGES: Final = {
    "ratio_mean": "mean_ratio",
    "ratio_p99": "p99_ratio",
    "ratio_max": "max_ratio",
    "log_ratio_mean": "mean_log_ratio",
    "log_ratio_squared_mean": "mean_log_ratio_sq",
    "kl_rollout": "kl_rollout",
    "kl_reference": "kl_ref",
    "kl_teacher": "kl_teacher",
    "effective_weight_mean": "mean_effective_weight",
    "damped_fraction": "damped_fraction",
    "router_shift_mean": "router_shift",
}
"""Prometheus name of each gauge, and its name in metrics.jsonl."""
SUMS: Final = {
    "bounded_ratio_sum": "mean_ratio",
    "bounded_ratio_squared_sum": "mean_ratio_sq",
    "correction_sum": "mean_correction",
    "correction_squared_sum": "mean_correction_sq",
}
"""Prometheus name of each sum over the tokens of a cell, and the name of their mean in metrics.jsonl.

The effective sample size is (sum x)^2 / (n sum x^2) over all tokens, with n from `loss_tokens`. It follows
from these sums; it does not follow from the effective sample sizes of the cells."""

DIVERSITY: Final = (
    "token_entropy",
    "distinct_1",
    "distinct_2",
    "distinct_3",
    "duplicate_share",
    "answer_cluster_count",
    "reward_std",
    "zero_variance_share",
)


CRITIC: Final = ("value_loss", "explained_variance", "value_clip_fraction", "critic_gradient_norm")


def observe_critic(metrics: Metrics, values: Mapping[str, float]) -> None:
    """Set the gauges of the critic, if the run has one."""
    for name in CRITIC:
        if name in values:
            metrics.set(name, values[name])


def observe_loss(metrics: Metrics, by_staleness: Mapping[str, Mapping[str, float]]) -> None:
    """Count the tokens of a step, and set its gauges. Gauges of a bucket without tokens become NaN."""
    for age in BUCKETS:
        values = by_staleness.get(age, {})
        for sign, suffix in SIGNS.items():
            _observe_cell(metrics, values, suffix, {"staleness": age, "sign": sign})


def _observe_cell(
    metrics: Metrics, values: Mapping[str, float], suffix: str, labels: Mapping[str, str]
) -> None:
    trained = values.get(f"trained_tokens{suffix}", 0.0)
    metrics.count("tokens_trained_total", trained, **labels)
    for name, share in TOKEN_SHARES.items():
        metrics.count(name, trained * values.get(f"{share}{suffix}", 0.0), **labels)
    for name, share in SIDE_SHARES.items():
        for side in ("low", "high"):
            metrics.count(name, trained * values.get(f"{share}_{side}{suffix}", 0.0), side=side, **labels)
    metrics.set("loss_tokens", trained, **labels)
    for name, mean in SUMS.items():
        metrics.set(name, trained * values.get(f"{mean}{suffix}", 0.0) if trained else 0.0, **labels)
    for name, metric in GAUGES.items():
        metrics.set(name, values.get(f"{metric}{suffix}", math.nan) if trained else math.nan, **labels)
