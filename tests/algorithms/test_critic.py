"""Value loss, explained variance and whitening against numbers worked by hand and a slow loop."""

import math
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import (
    Counts,
    ValueLoss,
    final_rewards,
    finalize_values,
    merge,
    moments,
    value_loss,
    whiten,
)
from torch import Tensor

FAST = settings(max_examples=40, deadline=None)
NAN = math.nan


def tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def computed(
    values: list[float],
    old: list[float],
    returns: list[float],
    mask: list[float] | None = None,
    **options: Any,
) -> tuple[ValueLoss, list[float]]:
    """The loss, and its gradient by each value."""
    leaf = tensor(values).requires_grad_()
    mask_T = tensor([1.0] * len(values) if mask is None else mask)
    loss = value_loss(leaf, tensor(old), tensor(returns), mask_T, **options)
    (gradient,) = torch.autograd.grad(loss.loss, leaf)
    return loss, gradient.tolist()


def metrics(loss: ValueLoss) -> dict[str, float]:
    return finalize_values(loss.sums)


def test_the_loss_and_its_gradient_of_four_tokens() -> None:
    # c = 0.2, v_old = 1 everywhere.
    # v 1.1, R 2: inside the range; (0.9)^2 = 0.81;                                gradient -0.9
    # v 1.5, R 2: 0.25, clipped at 1.2: 0.64 is larger;                            gradient 0
    # v 1.5, R 1: 0.25, clipped at 1.2: 0.04; moved away, so 0.25 counts;          gradient 0.5
    # v 0.5, R 0.9: 0.16, clipped at 0.8: 0.01; passed the return, so 0.16 counts; gradient -0.4
    # sum 0.81 + 0.64 + 0.25 + 0.16 = 1.86, half of it over 4 tokens: 0.2325
    result, gradient = computed([1.1, 1.5, 1.5, 0.5], [1.0] * 4, [2.0, 2.0, 1.0, 0.9], clip_range=0.2)
    assert result.loss.item() == pytest.approx(0.2325)
    assert gradient == pytest.approx([-0.225, 0.0, 0.125, -0.1])
    assert metrics(result)["value_loss"] == pytest.approx(0.2325)
    assert metrics(result)["value_clip_fraction"] == 0.25


def test_without_a_clip_it_is_half_the_mean_squared_error() -> None:
    result, gradient = computed([1.5, 0.0], [1.0, 9.0], [2.0, 4.0], clip_range=None)
    assert result.loss.item() == (0.25 + 16.0) / 4
    assert gradient == [-0.25, -2.0]
    assert metrics(result)["value_clip_fraction"] == 0.0


def test_masked_tokens_are_ignored_whatever_they_hold_and_stay_in_the_divisor() -> None:
    counts = Counts(tokens=4, sequences=1)
    result, gradient = computed(
        [NAN, 1.0, math.inf], [NAN, 0.0, 1.0], [0.0, 3.0, NAN], [0, 1, 0], counts=counts, clip_range=None
    )
    assert result.loss.item() == 0.5 * 4.0 / 4
    assert gradient == [0.0, -0.5, 0.0]
    assert metrics(result)["value_loss"] == 2.0  # of the one token that trained


def test_no_token_at_all_is_a_loss_of_0() -> None:
    result, gradient = computed([1.0], [1.0], [2.0], [0])
    assert (result.loss.item(), gradient) == (0.0, [0.0])
    assert all(math.isnan(value) for value in metrics(result).values())


def test_a_value_that_is_not_finite_makes_a_loss_and_a_gradient_that_are_not() -> None:
    for values, returns in (([NAN, 1.0], [0.0, 0.0]), ([0.0, 1.0], [NAN, 0.0])):
        result, gradient = computed(values, [0.0, 0.0], returns)
        assert math.isnan(result.loss.item())
        assert math.isnan(gradient[0])


def slow(
    values: list[float], old: list[float], returns: list[float], mask: list[float], clip: float | None
) -> tuple[float, list[float]]:
    """One token after the other, with the gradient by a case distinction of its own."""
    total, tokens, gradient = 0.0, sum(mask), [0.0] * len(values)
    for t, (v, before, wanted) in enumerate(zip(values, old, returns, strict=True)):
        if not mask[t]:
            continue
        low, high = (-math.inf, math.inf) if clip is None else (before - clip, before + clip)
        near = min(max(v, low), high)
        total += max((v - wanted) ** 2, (near - wanted) ** 2) / 2 / tokens
        inside = low <= v <= high
        if inside or (v - wanted) ** 2 >= (near - wanted) ** 2:
            gradient[t] = (v - wanted) / tokens
    return total, gradient


@FAST
@given(seed=st.integers(0, 2**31), size=st.integers(1, 30), clip=st.sampled_from([None, 0.05, 0.2, 1.0]))
def test_the_loss_is_that_of_a_loop(seed: int, size: int, clip: float | None) -> None:
    random = Random(seed)
    values, old, returns = ([random.gauss(0, 0.5) for _ in range(size)] for _ in range(3))
    mask = [1.0, *(float(random.random() < 0.7) for _ in range(size - 1))]
    result, gradient = computed(values, old, returns, mask, clip_range=clip)
    loss, slopes = slow(values, old, returns, mask, clip)
    assert result.loss.item() == pytest.approx(loss, rel=1e-9)
    assert gradient == pytest.approx(slopes, rel=1e-9, abs=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    values, old, returns = (torch.randn(12, dtype=torch.float64) for _ in range(3))
    mask = torch.ones(12)

    def loss(leaf: Tensor) -> Tensor:
        return value_loss(leaf, old, returns, mask, clip_range=0.5).loss

    assert torch.autograd.gradcheck(loss, values.requires_grad_())


@FAST
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 19))
def test_parts_of_a_batch_add_up_to_the_whole(seed: int, cut: int) -> None:
    random = Random(seed)
    columns = [[random.gauss(0, 1) for _ in range(20)] for _ in range(3)]
    mask = [float(random.random() < 0.7) for _ in range(20)]
    counts = Counts(tokens=20, sequences=2)
    unsplit, gradient = computed(*columns, mask, counts=counts)
    parts = [
        computed(*(column[piece] for column in columns), mask[piece], counts=counts)
        for piece in (slice(0, cut), slice(cut, 20))
    ]
    assert unsplit.loss.item() == pytest.approx(sum(part.loss.item() for part, _ in parts), rel=1e-12)
    assert gradient == pytest.approx(parts[0][1] + parts[1][1], rel=1e-12)
    together = finalize_values(merge(part.sums for part, _ in parts))
    assert together == pytest.approx(metrics(unsplit), rel=1e-9, nan_ok=True)


def test_explained_variance_of_three_returns() -> None:
    # R 0, 2, 4: squares around the mean 8; R - v_old = -1, 1, 0: 2. 1 - 2 / 8, whatever v is now.
    result, _ = computed([9.0, 9.0, 9.0], [1.0, 1.0, 4.0], [0.0, 2.0, 4.0])
    assert metrics(result)["explained_variance"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("old", "expected"),
    [
        ([0.0, 2.0, 4.0], 1.0),
        ([3.0, 3.0, 3.0], 0.0),
        ([1.0, 3.0, 5.0], 1.0),  # off by a constant: all that varies is explained
        ([4.0, 2.0, 0.0], -3.0),  # errors -4, 0, 4: 1 - 32 / 8
    ],
)
def test_explained_variance_tells_good_critics_from_bad_ones(old: list[float], expected: float) -> None:
    result, _ = computed([0.0] * 3, old, [0.0, 2.0, 4.0])
    assert metrics(result)["explained_variance"] == pytest.approx(expected)


def test_of_equal_returns_no_variance_is_explained() -> None:
    result, _ = computed([0.0] * 3, [0.1, 0.2, 0.3], [0.1 * 3, 0.3, 0.3])
    assert math.isnan(metrics(result)["explained_variance"])


def test_a_run_without_a_critic_has_no_metrics_of_one() -> None:
    assert finalize_values({"tokens": torch.ones(1)}) == {}


def test_the_reward_of_a_sequence_arrives_at_its_last_token() -> None:
    rewards_T = final_rewards(torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0, 0, 1, 2, 2, 2]))
    assert rewards_T.tolist() == [0.0, 1.0, 2.0, 0.0, 0.0, -1.0]


def test_a_reward_that_is_not_finite_is_named() -> None:
    with pytest.raises(ValueError, match="rewards: got a number that is not finite"):
        final_rewards(torch.tensor([1.0, NAN]), torch.tensor([0, 1]))


def test_whitened_numbers_have_mean_0_and_deviation_1_over_all_parts() -> None:
    # 1, 3 and 5, 7: mean 4, squares of what is left 9 + 1 + 1 + 9 = 20, over 3: 6.6667, root 2.5820
    parts = [tensor([1.0, 3.0, NAN]), tensor([5.0, 7.0])]
    masks = [torch.tensor([1, 1, 0]), torch.tensor([1, 1])]
    all_moments = torch.stack([moments(p, m) for p, m in zip(parts, masks, strict=True)]).sum(0)
    assert all_moments.tolist() == [4.0, 16.0, 84.0]
    assert whiten(parts[0], all_moments, epsilon=1e-9)[:2].tolist() == pytest.approx([-1.1618950, -0.3872983])
    assert whiten(parts[1], all_moments, epsilon=1e-9).tolist() == pytest.approx([0.3872983, 1.1618950])
    assert whiten(tensor([7.0]), all_moments, epsilon=1.0).tolist() == pytest.approx([3 / 3.5819889])


def test_equal_numbers_and_a_single_one_are_whitened_to_nothing() -> None:
    equal = tensor([0.1 * 3, 0.3, 0.3])
    assert whiten(equal, moments(equal, torch.ones(3)), epsilon=1e-6).tolist() == pytest.approx(
        [0.0] * 3, abs=1e-2
    )
    alone = tensor([5.0])
    assert whiten(alone, moments(alone, torch.ones(1)), epsilon=1e-6).tolist() == [0.0]


def test_a_number_that_is_not_finite_spoils_what_is_whitened_with_it() -> None:
    for junk in (NAN, math.inf):
        values = tensor([1.0, junk, 2.0])
        assert bool(whiten(values, moments(values, torch.ones(3)), epsilon=1e-6).isnan().all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": torch.zeros(3, dtype=torch.long)}, "values: got torch.int64"),
        ({"values": torch.zeros(3, 1)}, r"values: got shape \[3, 1\]"),
        ({"old_values": torch.zeros(2)}, "old_values: got shape"),
        ({"returns": torch.zeros(2)}, "returns: got shape"),
        ({"mask": torch.tensor([1.0, 0.5, 1.0])}, "mask: got values other than 0 and 1"),
        ({"clip_range": 0.0}, "clip_range"),
        ({"counts": Counts(tokens=2, sequences=1)}, "counts: got 2 tokens.*has 3"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], message: str) -> None:
    fine = {"values": torch.zeros(3), "old_values": torch.zeros(3), "returns": torch.zeros(3)}
    with pytest.raises(ValueError, match=message):
        value_loss(**{**fine, "mask": torch.ones(3), **arguments})
