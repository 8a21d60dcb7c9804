"""Each objective against numbers worked by hand, mostly with r = 1/2, 1, 2, 8 for both signs of A."""

import math
from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
import torch
from algorithms.loss_batches import one_token, run, spec_of
from algorithms.loss_reference import Batch, Sequence
from slipstream.algorithms.ratios import k3
from slipstream.algorithms.spec import (
    Cispo,
    Dppo,
    Gmpo,
    Gspo,
    GspoToken,
    Ipo,
    Is,
    Objective,
    Pg,
    PpoClip,
    RolloutIs,
    Rspo,
    Sapo,
    Topr,
    Vespo,
)

RATIO = [0.5, 1.0, 2.0, 8.0] * 2
ADVANTAGE = [3.0] * 4 + [-3.0] * 4
ANCHOR = -3.0


def evaluate(spec: Objective) -> tuple[list[float], list[float], dict[str, float]]:
    """Return J and dJ/dl of each token, one sequence each, and the metrics."""
    batch: Batch = []
    for ratio, advantage in zip(RATIO, ADVANTAGE, strict=True):
        batch += one_token(ANCHOR + log(ratio), ANCHOR, advantage)
    value = [-run(spec_of(spec), [sequence]).loss for sequence in batch]
    result = run(spec_of(spec), batch)
    return value, (-8 * result.gradient).tolist(), result.out.metrics


def sequence_of(*log_ratios: float, advantage: float, **more: Any) -> Batch:
    """Return one sequence with the given log ratios."""
    return [
        Sequence(tuple(one_token(ANCHOR + z, ANCHOR, advantage, **more)[0].tokens[0] for z in log_ratios))
    ]


def value_and_gradient(spec: Objective, batch: Batch, **arguments: Any) -> tuple[float, list[float]]:
    """Return J and g of the tokens of one sequence, w taken out of both."""
    result = run(spec_of(spec, "seq_mean_token_mean"), batch, **arguments)
    return -result.loss, (-len(batch[0].tokens) * result.gradient).tolist()


def share(metrics: dict[str, float], name: str) -> tuple[float, float]:
    """Return a metric over A > 0 and over A < 0."""
    return metrics[f"{name}_positive"], metrics[f"{name}_negative"]


def test_pg_weighs_by_nothing() -> None:
    value, gradient, _ = evaluate(Pg())
    assert gradient == pytest.approx(ADVANTAGE)
    assert value[2] == pytest.approx(3 * (-3 + log(2)))


def test_is_weighs_by_the_ratio() -> None:
    value, gradient, _ = evaluate(Is())
    assert value == pytest.approx([1.5, 3, 6, 24, -1.5, -3, -6, -24])
    assert gradient == pytest.approx([1.5, 3, 6, 24, -1.5, -3, -6, -24])


def test_ppo_clip_takes_the_lower_of_both_and_stops_outside_on_the_side_of_the_sign() -> None:
    # band [0.8, 1.2]. A > 0: min(1.5, 2.4), 3, min(6, 3.6), min(24, 3.6). A < 0: min(-1.5, -2.4), -3, -6, -24
    value, gradient, metrics = evaluate(PpoClip())
    assert value == pytest.approx([1.5, 3, 3.6, 3.6, -2.4, -3, -6, -24])
    assert gradient == pytest.approx([1.5, 3, 0, 0, 0, -3, -6, -24])
    assert share(metrics, "clip_fraction_high") == (0.5, 0.0)
    assert share(metrics, "clip_fraction_low") == (0.0, 0.25)
    assert share(metrics, "out_of_band_fraction_low") == (0.25, 0.25)
    assert share(metrics, "out_of_band_fraction_high") == (0.5, 0.5)
    assert share(metrics, "zero_gradient_fraction") == (0.5, 0.25)


@pytest.mark.parametrize(
    "objective", [PpoClip(dual_clip=4.0), Gspo(clip_low=0.2, clip_high=0.2, dual_clip=4.0)]
)
def test_dual_clip_bounds_the_loss_of_a_negative_advantage(objective: Objective) -> None:
    # A < 0 and r = 8: max(-24, 4 * -3) without gradient; A > 0 as before
    value, gradient, metrics = evaluate(objective)
    assert value == pytest.approx([1.5, 3, 3.6, 3.6, -2.4, -3, -6, -12])
    assert gradient == pytest.approx([1.5, 3, 0, 0, 0, -3, -6, 0])
    assert share(metrics, "zero_gradient_fraction") == (0.5, 0.5)


def test_dual_clip_of_is_bounds_negative_advantages_only() -> None:
    value, gradient, _ = evaluate(Is(dual_clip=1.5))
    assert value == pytest.approx([1.5, 3, 6, 24, -1.5, -3, -4.5, -4.5])
    assert gradient == pytest.approx([1.5, 3, 6, 24, -1.5, -3, 0, 0])


def test_cispo_caps_the_weight_for_both_signs_and_never_stops() -> None:
    # weights 0.5, 1, 2, 5 (8 capped at 1 + 4); J = weight * A * l with l = -3 + log r
    value, gradient, metrics = evaluate(Cispo())
    assert gradient == pytest.approx([1.5, 3, 6, 15, -1.5, -3, -6, -15])
    assert value[3] == pytest.approx(15 * (-3 + log(8)))
    assert share(metrics, "clip_fraction_high") == (0.25, 0.25)
    assert share(metrics, "clip_fraction_low") == (0.0, 0.0)
    assert share(metrics, "zero_gradient_fraction") == (0.0, 0.0)


def test_cispo_with_a_lower_end_raises_the_weight_of_tokens_the_policy_left() -> None:
    _, gradient, metrics = evaluate(Cispo(clip_low=0.25, clip_high=0.5))
    assert gradient == pytest.approx([2.25, 3, 4.5, 4.5, -2.25, -3, -4.5, -4.5])
    assert share(metrics, "clip_fraction_low") == (0.25, 0.25)


def test_cispo_with_a_mask_stops_where_ppo_clip_would_and_caps_elsewhere() -> None:
    # ratios 0.5, 1, 2, 8. A > 0: 8 > 1 + 2 stops; A < 0: 0.5 < 1 - 0.25 stops, 8 is capped at 1 + 4
    value, gradient, metrics = evaluate(Cispo(mask_low=0.25, mask_high=2.0))
    assert gradient == pytest.approx([1.5, 3, 6, 0, 0, -3, -6, -15])
    assert value[2] == pytest.approx(6 * (-3 + log(2)))
    assert (value[3], value[4]) == (0, 0)
    assert share(metrics, "zero_gradient_fraction") == (0.25, 0.25)
    assert share(metrics, "clip_fraction_low") == (0.0, 0.25)
    assert share(metrics, "clip_fraction_high") == (0.25, 0.25)
    assert share(metrics, "dropped_fraction") == (0.0, 0.0)


def test_cispo_with_a_mask_on_one_side_leaves_the_other_alone() -> None:
    _, gradient, _ = evaluate(Cispo(mask_high=0.5))
    assert gradient == pytest.approx([1.5, 3, 0, 0, -1.5, -3, -6, -15])


def test_rollout_is_drops_whatever_is_outside_of_the_band() -> None:
    value, gradient, metrics = evaluate(RolloutIs(clip_low=0.6, clip_high=0.5))
    assert gradient == pytest.approx([1.5, 3, 0, 0, -1.5, -3, 0, 0])
    assert value[0] == pytest.approx(1.5 * (-3 - log(2)))
    assert share(metrics, "zero_gradient_fraction") == (0.5, 0.5)


def test_topr_tapers_negative_advantages_alone() -> None:
    value, gradient, _ = evaluate(Topr())
    assert gradient == pytest.approx([3, 3, 3, 3, -1.5, -3, -3, -3])
    assert value[4] == pytest.approx(-1.5 * (-3 - log(2)))


def test_sapo_gates_by_the_hyperbolic_secant() -> None:
    # tau = 1: sech^2((r - 1) / 2) = 0.940015, 1, 0.786448, 0.003641; J at r = 1 is 4 * 1/2 * 3 = 6
    # tau = 1.05 (A < 0): 0.934140, 1, 0.768110, 0.002567
    value, gradient, metrics = evaluate(Sapo())
    expected = [1.410022, 3, 4.718686, 0.087381, -1.401210, -3, -4.608659, -0.061610]
    assert gradient == pytest.approx(expected, abs=2e-6)
    assert value[1] == pytest.approx(6.0)
    assert value[5] == pytest.approx(-6 / 1.05)
    assert value[2] == pytest.approx(12 / (1 + exp(-1)))
    assert share(metrics, "damped_fraction") == (0.25, 0.25)


def test_gspo_clips_the_geometric_mean_of_the_sequence() -> None:
    # z = 0.3, -0.1: s = e^0.1 = 1.105171: s A for both in the band [0.8, 1.2], clipped in [0.9997, 1.0004]
    batch = sequence_of(0.3, -0.1, advantage=2.0)
    value, gradient = value_and_gradient(Gspo(clip_low=0.2, clip_high=0.2), batch)
    assert value == pytest.approx(2 * 1.105171, rel=1e-6)
    assert gradient == pytest.approx([2 * 1.105171] * 2, rel=1e-6)
    assert value_and_gradient(Gspo(), batch) == (pytest.approx(2 * 1.0004), [0.0, 0.0])
    negative = sequence_of(0.3, -0.1, advantage=-2.0)
    assert value_and_gradient(Gspo(), negative)[1] == pytest.approx([-2 * 1.105171] * 2, rel=1e-6)


def test_seq_len_weighted_gives_gspo_a_sequence_s_whole_ratio_on_every_token() -> None:
    # 1 / B a token: the gradient of seq_mean_token_mean times L = 2
    batch = sequence_of(0.3, -0.1, advantage=2.0)
    spec = spec_of(Gspo(clip_low=0.2, clip_high=0.2), "seq_len_weighted")
    assert run(spec, batch).gradient.tolist() == pytest.approx([-2 * 1.105171] * 2, rel=1e-6)


def test_gspo_token_clips_the_sequence_and_credits_the_token() -> None:
    # s = e^0.1 is above the band: A = 2 loses its gradient, A = -1 keeps s A
    batch = sequence_of(0.3, -0.1, advantage=0.0)
    advantages = torch.tensor([2.0, -1.0], dtype=torch.float64)
    value, gradient = value_and_gradient(GspoToken(), batch, advantages=advantages)
    assert gradient == pytest.approx([0.0, -1.105171], rel=1e-6)
    assert value == pytest.approx((2 * 1.0004 - 1.105171) / 2, rel=1e-6)


def test_gmpo_cuts_the_log_ratio_of_a_token_and_counts_the_cut_inside_the_mean() -> None:
    # z = 1, -0.2. A > 0: min(z, 0.4): S = exp((0.4 - 0.2) / 2) = e^0.1, the first token is cut
    value, gradient = value_and_gradient(Gmpo(), sequence_of(1.0, -0.2, advantage=2.0))
    assert value == pytest.approx(2 * exp(0.1))
    assert gradient == pytest.approx([0.0, 2 * exp(0.1)])
    # A < 0: max(z, -0.4): S = e^0.4, nothing is cut; z = -1 would be
    _, gradient = value_and_gradient(Gmpo(), sequence_of(1.0, -0.2, advantage=-2.0))
    assert gradient == pytest.approx([-2 * exp(0.4)] * 2)
    _, gradient = value_and_gradient(Gmpo(), sequence_of(1.0, -1.0, advantage=-2.0))
    assert gradient == pytest.approx([-2 * exp(0.3), 0.0])


def test_rspo_shifts_the_log_ratio_by_gamma_before_after_or_by_the_sign() -> None:
    # z = 0.5, -0.2 and gamma = 0.8 (log -0.2231), A > 0. before: z' = 0.2769, -0.4231, nothing is cut
    # after: z cut to 0.4: S = e^0.1 times 0.8, the first token is cut
    batch = sequence_of(0.5, -0.2, advantage=2.0, router_shift=0.8)
    assert value_and_gradient(Rspo(), batch)[1] == pytest.approx([2 * exp(0.15 + log(0.8))] * 2)
    assert value_and_gradient(Rspo(placement="after"), batch)[1] == pytest.approx([0.0, 2 * 0.8 * exp(0.1)])
    assert value_and_gradient(Rspo(placement="literal_b"), batch)[1] == pytest.approx(
        [0.0, 2 * 0.8 * exp(0.1)]
    )
    # A < 0: nothing is cut in z; literal_b divides by 0.8
    batch = sequence_of(0.5, -0.2, advantage=-2.0, router_shift=0.8)
    assert value_and_gradient(Rspo(placement="after"), batch)[1] == pytest.approx([-2 * 0.8 * exp(0.15)] * 2)
    assert value_and_gradient(Rspo(placement="literal_b"), batch)[1] == pytest.approx(
        [-2 / 0.8 * exp(0.15)] * 2
    )
    # a router that moved further counts as gamma_min = 0.7
    batch = sequence_of(0.0, advantage=1.0, router_shift=0.1)
    assert value_and_gradient(Rspo(), batch)[1] == pytest.approx([0.7])


def test_vespo_weighs_by_the_product_of_the_sequence() -> None:
    # phi(W) = W^2 e^(3 (1 - W)) for A > 0 and W^3 e^(2 (1 - W)) for A < 0, here at W = 1/2, 1, 2, 8
    positive = [0.25 * exp(1.5), 1, 4 * exp(-3), 64 * exp(-21)]
    negative = [0.125 * exp(1), 1, 8 * exp(-2), 512 * exp(-14)]
    value, gradient, metrics = evaluate(Vespo())
    assert gradient == pytest.approx([3 * phi for phi in positive] + [-3 * phi for phi in negative])
    assert value[2] == pytest.approx(3 * positive[2] * (-3 + log(2)))
    assert share(metrics, "damped_fraction") == (0.25, 0.25)
    # the catalogue's phi(0.1) = .149 / .006 and phi(3) = .022 / .495
    for w, phis in ((0.1, (0.149, 0.006)), (3.0, (0.022, 0.495))):
        got = [abs(value_and_gradient(Vespo(), sequence_of(log(w), advantage=a))[1][0]) for a in (1.0, -1.0)]
        assert got == pytest.approx(phis, abs=6e-4)
    # a product, not a mean: two tokens of ratio sqrt(2) are W = 2
    batch = sequence_of(log(2) / 2, log(2) / 2, advantage=3.0)
    assert value_and_gradient(Vespo(), batch)[1] == pytest.approx([3 * positive[2]] * 2)


def test_dppo_masks_by_the_distance_of_probabilities_what_moves_further_away() -> None:
    # mu = e^-3 = 0.0498, p = 0.0249, 0.0498, 0.0996, 0.3983: |p - q| = 0.0249, 0, 0.0498, 0.3485; cap 5
    _, gradient, metrics = evaluate(Dppo())
    assert gradient == pytest.approx([1.5, 3, 6, 0, -1.5, -3, -6, -15])
    assert share(metrics, "clip_fraction_high") == (0.25, 0.0)
    _, gradient, _ = evaluate(Dppo(limit_low=0.02, limit_high=0.04, cap=None))
    assert gradient == pytest.approx([1.5, 3, 0, 0, 0, -3, -6, -24])


def test_dppo_by_binary_kl_measures_mu_against_pi() -> None:
    # q = 0.1, p = 0.3, A > 0: 0.1 ln(1/3) + 0.9 ln(0.9 / 0.7) = 0.1163 > 0.05; pi against mu would be 0.1537
    batch = one_token(log(0.3), log(0.1), 1.0)
    for limit, g in ((0.11, 0.0), (0.12, 3.0), (0.15, 3.0)):
        spec = Dppo(divergence="binary_kl", limit_high=limit)
        assert value_and_gradient(spec, batch)[1] == pytest.approx([g])
    assert value_and_gradient(Dppo(divergence="binary_kl"), batch)[1] == [0.0]


def test_ipo_masks_by_the_distance_of_probabilities_whatever_the_sign() -> None:
    # |p - q| = 0.0249, 0, 0.0498, 0.3485 against 0.04
    _, gradient, _ = evaluate(Ipo(limit=0.04))
    assert gradient == pytest.approx([1.5, 3, 0, 0, -1.5, -3, 0, 0])


@pytest.mark.parametrize("spec", [PpoClip(), PpoClip(clip_low=None), Cispo(), Is(), Pg(), Sapo(), Vespo()])
def test_the_effective_weight_is_the_mean_gradient_over_the_advantage(spec: Objective) -> None:
    _, gradient, metrics = evaluate(spec)
    weights = [g / a for g, a in zip(gradient, ADVANTAGE, strict=True)]
    assert metrics["mean_effective_weight"] == pytest.approx(sum(weights) / 8)
    assert metrics["mean_effective_weight_negative"] == pytest.approx(sum(weights[4:]) / 4)


@pytest.mark.parametrize("spec", [PpoClip(), Cispo(), Is(), Pg()])
@pytest.mark.parametrize("gap", [200.0, -200.0])
def test_an_extreme_ratio_stays_finite(spec: Objective, gap: float) -> None:
    for advantage in (1.0, -1.0):
        value, gradient = value_and_gradient(spec, one_token(gap, 0.0, advantage))
        assert math.isfinite(value)
        assert math.isfinite(gradient[0])


def test_the_batch_anchor_is_the_other_column() -> None:
    # r = 2 to the rollout and 1/2 to the batch
    token = replace(one_token(-3.0, -3.0 - log(2), 3.0)[0].tokens[0], old=-3.0 + log(2))
    for anchor, g in (("rollout", 6.0), ("batch", 1.5)):
        spec = Is(anchor=anchor)  # type: ignore[arg-type]
        assert value_and_gradient(spec, [Sequence((token,))])[1] == pytest.approx([g])


def test_k3_is_the_ratio_minus_one_minus_its_log() -> None:
    # log r = log 2: 2 - 1 - 0.6931472
    assert float(k3(torch.tensor(log(2.0), dtype=torch.float64))) == pytest.approx(0.3068528)
