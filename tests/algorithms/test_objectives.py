"""Each objective against numbers worked by hand, with r = 1/2, 1, 2, 8 for both signs of A."""

from math import log
from typing import Any

import pytest
import torch
from slipstream.algorithms.objectives import surrogate
from slipstream.algorithms.ratios import k3
from slipstream.algorithms.spec import Cispo, Is, Objective, Pg, PpoClip
from torch import Tensor

RATIO = torch.tensor([0.5, 1.0, 2.0, 8.0] * 2, dtype=torch.float64)
ADVANTAGE = torch.tensor([3.0] * 4 + [-3.0] * 4, dtype=torch.float64)
ANCHOR = torch.full_like(RATIO, -2.0)


def evaluate(spec: Objective) -> tuple[list[float], list[float], Any]:
    """Return J, dJ/dl and the surrogate."""
    logprobs = (ANCHOR + RATIO.log()).requires_grad_()
    result = surrogate(spec, logprobs, ANCHOR, ADVANTAGE)
    result.value_T.sum().backward()
    gradient = logprobs.grad
    assert isinstance(gradient, Tensor)
    return result.value_T.tolist(), gradient.tolist(), result


def test_ppo_clip_takes_the_lower_of_both_and_stops_outside_on_the_side_of_the_sign() -> None:
    # band [0.8, 1.2]. A > 0: min(1.5, 2.4), 3, min(6, 3.6), min(24, 3.6). A < 0: min(-1.5, -2.4), -3, -6, -24
    value, gradient, result = evaluate(PpoClip())
    assert value == pytest.approx([1.5, 3, 3.6, 3.6, -2.4, -3, -6, -24])
    assert gradient == pytest.approx([1.5, 3, 0, 0, 0, -3, -6, -24])
    assert result.clipped_high_T.tolist() == [False, False, True, True] + [False] * 4
    assert result.clipped_low_T.tolist() == [False] * 4 + [True, False, False, False]
    assert result.below_T.tolist() == [True, False, False, False] * 2
    assert result.above_T.tolist() == [False, False, True, True] * 2


def test_cispo_caps_the_weight_for_both_signs_and_never_stops() -> None:
    # weights 0.5, 1, 2, 5 (8 capped at 1 + 4); J = weight * A * l with l = -2 + log r
    value, gradient, result = evaluate(Cispo())
    assert gradient == pytest.approx([1.5, 3, 6, 15, -1.5, -3, -6, -15])
    assert value[3] == pytest.approx(15 * (-2 + log(8)))
    assert result.clipped_high_T.tolist() == [False, False, False, True] * 2
    assert not result.clipped_low_T.any()


def test_cispo_with_a_lower_end_raises_the_weight_of_tokens_the_policy_left() -> None:
    _, gradient, result = evaluate(Cispo(clip_low=0.25, clip_high=0.5))
    assert gradient == pytest.approx([2.25, 3, 4.5, 4.5, -2.25, -3, -4.5, -4.5])
    assert result.clipped_low_T.tolist() == [True, False, False, False] * 2


def test_is_weighs_by_the_ratio_and_pg_by_nothing() -> None:
    assert evaluate(Is())[1] == pytest.approx([1.5, 3, 6, 24, -1.5, -3, -6, -24])
    assert evaluate(Pg())[1] == pytest.approx([3, 3, 3, 3, -3, -3, -3, -3])


@pytest.mark.parametrize("spec", [PpoClip(), PpoClip(clip_low=None), Cispo(), Is(), Pg()])
def test_the_effective_weight_is_the_gradient_over_the_advantage(spec: Objective) -> None:
    _, gradient, result = evaluate(spec)
    torch.testing.assert_close(
        result.effective_weight_T * ADVANTAGE, torch.tensor(gradient, dtype=torch.float64)
    )


@pytest.mark.parametrize("spec", [PpoClip(), Cispo(), Is(), Pg()])
@pytest.mark.parametrize("gap", [200.0, -200.0])
def test_an_extreme_ratio_stays_finite(spec: Objective, gap: float) -> None:
    logprobs = torch.tensor([gap, gap], requires_grad=True)
    result = surrogate(spec, logprobs, torch.zeros(2), torch.tensor([1.0, -1.0]))
    result.value_T.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert result.value_T.isfinite().all()
    torch.testing.assert_close(result.effective_weight_T * torch.tensor([1.0, -1.0]), logprobs.grad)


def test_no_gradient_reaches_anchor_or_advantage() -> None:
    anchor, advantage = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
    for spec in (PpoClip(), Cispo(), Is(), Pg()):
        surrogate(spec, torch.zeros(1, requires_grad=True), anchor, advantage).value_T.sum().backward()
    assert anchor.grad is None
    assert advantage.grad is None


def test_k3_is_the_ratio_minus_one_minus_its_log() -> None:
    # log r = log 2: 2 - 1 - 0.6931472
    assert float(k3(torch.tensor(log(2.0), dtype=torch.float64))) == pytest.approx(0.3068528)
