"""Metrics against numbers worked by hand: r = 1/2, 2, 8, 1 with A = -1, 1, -1, 1, and one masked token."""

from math import log
from typing import Any

import pytest
import torch
from slipstream.algorithms import finalize, merge, policy_loss

RATIO = torch.tensor([0.5, 2.0, 8.0, 1.0, 3.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0])


def metrics(spec: dict[str, Any], **arguments: Any) -> dict[str, float]:
    return policy_loss(
        {"aggregation": "token_mean", **spec},
        logprobs=RATIO.log(),
        mask=torch.tensor([1, 1, 1, 1, 0]),
        sequence_ids=torch.arange(5),
        **({"advantages": ADVANTAGES, "rollout_logprobs": torch.zeros(5)} | arguments),
    ).metrics


def test_ppo_clip_counts_only_tokens_without_gradient_as_clipped() -> None:
    # band [0.8, 1.2]: clipped are 1/2 (below, A < 0) and 2 (above, A > 0), but not 8 (above, A < 0)
    value = metrics({"objective": {"kind": "ppo_clip"}})
    assert (value["clip_fraction_low"], value["clip_fraction_high"]) == (0.25, 0.25)
    assert (value["out_of_band_fraction_low"], value["out_of_band_fraction_high"]) == (0.25, 0.5)
    assert (value["clip_fraction_high_positive"], value["clip_fraction_high_negative"]) == (0.5, 0.0)
    assert (value["clip_fraction_low_positive"], value["clip_fraction_low_negative"]) == (0.0, 0.5)


def test_cispo_counts_capped_tokens_of_both_signs() -> None:
    value = metrics({"objective": {"kind": "cispo", "clip_high": 0.5}})
    assert (value["clip_fraction_low"], value["clip_fraction_high"]) == (0.0, 0.5)
    assert (value["clip_fraction_high_positive"], value["clip_fraction_high_negative"]) == (0.5, 0.5)
    assert value["mean_effective_weight"] == pytest.approx((0.5 + 1.5 + 1.5 + 1) / 4)


def test_tokens_of_each_sign_are_counted_apart() -> None:
    value = metrics({"objective": {"kind": "is"}}, advantages=torch.tensor([0.0, 1.0, 0.0, -1.0, 1.0]))
    counts = [value[f"trained_tokens{suffix}"] for suffix in ("", "_positive", "_negative", "_zero")]
    assert counts == [4, 1, 1, 2]
    assert value["mean_ratio_zero"] == pytest.approx((0.5 + 8) / 2)
    assert (value["zero_gradient_fraction"], value["zero_gradient_fraction_zero"]) == (0.5, 1.0)


def test_ratio_moments_are_over_the_trained_tokens() -> None:
    # sum r = 11.5, sum r^2 = 0.25 + 4 + 64 + 1 = 69.25; log2 r = -1, 1, 3, 0: sum 3, squares 11
    value = metrics({"objective": {"kind": "is"}})
    assert value["mean_ratio"] == pytest.approx(11.5 / 4)
    assert value["max_ratio"] == pytest.approx(8.0)
    assert value["mean_ratio_sq"] == pytest.approx(69.25 / 4)
    assert value["ess"] == pytest.approx(11.5**2 / (4 * 69.25))
    assert value["mean_log_ratio"] == pytest.approx(3 * log(2) / 4)
    assert value["mean_log_ratio_sq"] == pytest.approx(11 * log(2) ** 2 / 4)
    assert value["kl_rollout"] == pytest.approx((11.5 - 4 - 3 * log(2)) / 4)


def test_the_distance_to_the_rollout_policy_is_measured_whatever_the_anchor() -> None:
    value = metrics({"objective": {"kind": "is", "anchor": "batch"}}, old_logprobs=RATIO.log())
    assert value["mean_ratio"] == pytest.approx(1.0)
    assert value["kl_rollout"] == pytest.approx((11.5 - 4 - 3 * log(2)) / 4)


def test_the_distance_to_the_reference_is_k3_of_the_inverse_ratio() -> None:
    # d = log r: e^-d - 1 + d; sum 1/r = 2 + 1/2 + 1/8 + 1 = 3.625
    value = metrics({"objective": {"kind": "is"}}, ref_logprobs=torch.zeros(5))
    assert value["kl_ref"] == pytest.approx((3.625 - 4 + 3 * log(2)) / 4)
    assert "kl_ref" not in metrics({"objective": {"kind": "is"}})


def test_merging_adds_all_but_the_maximum() -> None:
    left = {"tokens": torch.tensor(3.0), "max_ratio": torch.tensor(2.0)}
    right = {"tokens": torch.tensor(4.0), "max_ratio": torch.tensor(1.5)}
    assert {name: float(value) for name, value in merge([left, right]).items()} == {
        "tokens": 7.0,
        "max_ratio": 2.0,
    }


def test_metrics_are_floats_and_sums_carry_no_gradient() -> None:
    logprobs = torch.zeros(2, requires_grad=True)
    out = policy_loss(
        {"preset": "cispo"},
        logprobs=logprobs,
        rollout_logprobs=torch.zeros(2),
        advantages=torch.ones(1),
        mask=torch.ones(2),
        sequence_ids=torch.zeros(2, dtype=torch.long),
    )
    assert all(type(value) is float for value in finalize(out.sums).values())
    assert not any(value.requires_grad for value in out.sums.values())
