"""The Prometheus metrics of a loss add up to the values of metrics.jsonl for the same tokens."""

import math
from typing import Any

import pytest
import torch
from slipstream.algorithms import finalize, finalize_by_staleness, policy_loss
from slipstream.learner.training.loss_metrics import GAUGES, SIDE_SHARES, TOKEN_SHARES, observe_loss
from slipstream.telemetry.metrics import Metrics

TOKENS = 400
ICEPOP: dict[str, Any] = {
    "objective": {"kind": "ppo_clip", "anchor": "batch"},
    "correction": {"kind": "icepop", "low": 0.8, "high": 1.2},
    "aggregation": "token_mean",
    "max_staleness": 8,
}
CISPO: dict[str, Any] = {"objective": {"kind": "cispo", "clip_high": 0.1}, "aggregation": "token_mean"}


def sums_of(spec: dict[str, Any], *, zero_share: float = 0.5) -> dict[str, torch.Tensor]:
    """Sums of a loss over tokens of five ages; the given share of them has an advantage of 0."""
    generator = torch.Generator().manual_seed(0)
    prox = 0.3 * torch.randn(TOKENS, generator=generator)
    sign = torch.where(torch.rand(TOKENS, generator=generator) < 0.5, -1.0, 1.0)
    return policy_loss(
        spec,
        logprobs=prox + 0.3 * torch.randn(TOKENS, generator=generator) - 4,
        old_logprobs=prox - 4,
        rollout_logprobs=torch.full((TOKENS,), -4.0),
        advantages=torch.where(torch.rand(TOKENS, generator=generator) < zero_share, 0.0, sign),
        mask=torch.ones(TOKENS),
        sequence_ids=torch.arange(TOKENS) // 4,
        staleness=torch.arange(TOKENS) % 5,
    ).sums


def shown(sums: dict[str, torch.Tensor]) -> Metrics:
    """A metrics page after one step with these sums."""
    metrics = Metrics()
    observe_loss(metrics, finalize_by_staleness(sums))
    return metrics


def values(metrics: Metrics, name: str, **labels: str) -> dict[tuple[str, str], float]:
    """The samples of a metric by age and sign."""
    return {
        (sample.labels["staleness"], sample.labels["sign"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == f"slipstream_{name}" and labels.items() <= sample.labels.items()
    }


def total(metrics: Metrics, name: str, **labels: str) -> float:
    return sum(values(metrics, name, **labels).values())


@pytest.mark.parametrize("spec", [ICEPOP, CISPO], ids=["icepop", "cispo"])
def test_the_counters_add_up_to_the_shares_of_all_trained_tokens(spec: dict[str, Any]) -> None:
    sums = sums_of(spec)
    totals, metrics = finalize(sums), shown(sums)
    trained = total(metrics, "tokens_trained_total")
    assert trained == totals["trained_tokens"] == TOKENS
    for name, share in TOKEN_SHARES.items():
        assert total(metrics, name) / trained == pytest.approx(totals[share]), name
    for name, share in SIDE_SHARES.items():
        for side in ("low", "high"):
            counted = total(metrics, name, side=side)
            assert counted / trained == pytest.approx(totals[f"{share}_{side}"]), (name, side)


def test_tokens_with_an_advantage_of_0_have_no_gradient_and_may_be_dropped() -> None:
    metrics = shown(sums_of(ICEPOP, zero_share=1.0))
    assert total(metrics, "zero_gradient_tokens_total") == TOKENS
    assert 0 < total(metrics, "dropped_tokens_total") < TOKENS


@pytest.mark.parametrize("spec", [ICEPOP, CISPO], ids=["icepop", "cispo"])
def test_the_gauges_of_means_are_over_every_trained_token(spec: dict[str, Any]) -> None:
    sums = sums_of(spec)
    totals, metrics = finalize(sums), shown(sums)
    weights = values(metrics, "tokens_trained_total")
    means = {name: key for name, key in GAUGES.items() if key.startswith("mean") or key == "kl_rollout"}
    assert len(means) == 5
    for name, key in means.items():
        gauge_values = {cell: value for cell, value in values(metrics, name).items() if not math.isnan(value)}
        mean = sum(weights[cell] * value for cell, value in gauge_values.items()) / TOKENS
        assert mean == pytest.approx(totals[key]), name


@pytest.mark.parametrize(("name", "key"), [("bounded_ratio", "ess"), ("correction", "ess_correction")])
def test_the_exported_sums_give_the_effective_sample_size_of_the_step_and_of_each_age(
    name: str, key: str
) -> None:
    sums = sums_of({**ICEPOP, "objective": {"kind": "is", "anchor": "batch"}})
    metrics = shown(sums)

    def effective(ages: set[str]) -> float:
        total_x, squares, tokens = (
            sum(value for (age, _), value in values(metrics, series).items() if age in ages)
            for series in (f"{name}_sum", f"{name}_squared_sum", "loss_tokens")
        )
        return total_x**2 / (tokens * squares)

    by_age = finalize_by_staleness(sums)
    assert len(by_age) > 1
    assert effective(set(by_age)) == pytest.approx(finalize(sums)[key])
    for age, size in by_age.items():
        assert effective({age}) == pytest.approx(size[key])


def test_the_sums_of_a_cell_without_tokens_are_0_and_its_gauges_nan() -> None:
    metrics = shown(sums_of(CISPO, zero_share=1.0))
    observe_loss(metrics, {})
    assert set(values(metrics, "loss_tokens").values()) == {0.0}
    assert set(values(metrics, "bounded_ratio_squared_sum").values()) == {0.0}
    assert all(math.isnan(value) for value in values(metrics, "ratio_mean").values())
