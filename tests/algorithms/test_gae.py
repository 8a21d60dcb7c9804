"""Generalised advantage estimation against numbers worked by hand and a loop."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms.generalized_advantage import gae
from torch import Tensor

FAST = settings(max_examples=40, deadline=None)
NUMBERS = st.floats(-4, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    rewards: Tensor
    values: Tensor
    mask: Tensor
    ids: Tensor
    bootstrap: Tensor

    def gae(self, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
        return gae(
            self.rewards,
            self.values,
            self.mask,
            self.ids,
            gamma=gamma,
            lam=lam,
            bootstrap=self.bootstrap,
        )


@st.composite
def packs(draw: st.DrawFn) -> Packed:
    lengths = draw(st.lists(st.integers(1, 17), min_size=1, max_size=5))
    ids = [index for index, length in enumerate(lengths) for _ in range(length)]

    def each(value: st.SearchStrategy[Any], size: int = len(ids)) -> Tensor:
        return torch.tensor(draw(st.lists(value, min_size=size, max_size=size)), dtype=torch.float64)

    return Packed(
        rewards=each(NUMBERS),
        values=each(NUMBERS),
        mask=each(st.integers(0, 1)),
        ids=torch.tensor(ids),
        bootstrap=each(NUMBERS, len(lengths)),
    )


def loop(pack: Packed, gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Backwards over the tokens: (V, A) of the next token of the model, renewed at each sequence's end."""
    size = len(pack.ids)
    advantages, returns = [0.0] * size, [0.0] * size
    sequence, value, advantage = -1, 0.0, 0.0
    for t in reversed(range(size)):
        if int(pack.ids[t]) != sequence:
            sequence = int(pack.ids[t])
            value, advantage = float(pack.bootstrap[sequence]), 0.0
        if pack.mask[t]:
            delta = float(pack.rewards[t]) + gamma * value - float(pack.values[t])
            value, advantage = float(pack.values[t]), delta + gamma * lam * advantage
            advantages[t], returns[t] = advantage, advantage + value
    return advantages, returns


def run(rewards: Sequence[float], values: Sequence[float], **options: Any) -> tuple[list[float], list[float]]:
    size = len(rewards)
    arguments = {"mask": torch.ones(size), "sequence_ids": torch.zeros(size, dtype=torch.long), **options}
    double = [torch.tensor(x, dtype=torch.float64) for x in (rewards, values)]
    advantages, returns = gae(*double, **arguments)
    return advantages.tolist(), returns.tolist()


def test_advantages_and_returns_of_three_tokens() -> None:
    # gamma 1/2, lam 1/2. d: 0 + 2 - 2 = 0;  1 + 3 - 4 = 0;  8 + 0 - 6 = 2
    # A3 = 2, A2 = 0 + 2/4 = 0.5, A1 = 0 + 0.5/4 = 0.125; returns + V
    advantages, returns = run([0, 1, 8], [2, 4, 6], gamma=0.5, lam=0.5)
    assert advantages == [0.125, 0.5, 2.0]
    assert returns == [2.125, 4.5, 8.0]


def test_a_truncated_sequence_ends_in_its_bootstrap_value() -> None:
    # d2 = 1 + 1/2 * 4 - 1 = 2, d1 = 0 + 1/2 * 1 - 1 = -1/2; A1 = -1/2 + 1/2 * 2 = 1/2
    advantages, _ = run([0, 1], [1, 1], gamma=0.5, bootstrap=torch.tensor([4.0]))
    assert advantages == [0.5, 2.0]


def test_a_sequence_does_not_see_the_next_one() -> None:
    advantages, _ = run([1, 2, 4], [0, 0, 0], sequence_ids=torch.tensor([0, 0, 1]))
    assert advantages == [3.0, 2.0, 4.0]


def test_environment_tokens_carry_value_and_advantage_through_whatever_they_hold() -> None:
    plain, _ = run([0, 1, 8], [2, 4, 6], gamma=0.5, lam=0.5)
    mask = torch.tensor([0, 1, 0, 0, 1, 1, 0])
    advantages, returns = run(
        [9, 0, math.nan, 9, 1, 8, 9], [9, 2, math.inf, 9, 4, 6, math.nan], gamma=0.5, lam=0.5, mask=mask
    )
    assert advantages == [0, plain[0], 0, 0, plain[1], plain[2], 0]
    assert returns == [0, 2.125, 0, 0, 4.5, 8.0, 0]


@FAST
@given(pack=packs(), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_the_scan_is_the_loop(pack: Packed, gamma: float, lam: float) -> None:
    advantages, returns = pack.gae(gamma, lam)
    expected, expected_returns = loop(pack, gamma, lam)
    assert advantages.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert returns.tolist() == pytest.approx(expected_returns, rel=1e-12, abs=1e-12)


@FAST
@given(pack=packs())
def test_without_values_or_discount_the_advantage_is_the_reward_to_go(pack: Packed) -> None:
    zero = torch.zeros_like(pack.values)
    advantages, returns = gae(pack.rewards, zero, pack.mask, pack.ids)
    for t in range(len(pack.ids)):
        ahead = (pack.ids[t:] == pack.ids[t]) & (pack.mask[t:] > 0)
        expected = float(pack.rewards[t:][ahead].sum()) if pack.mask[t] else 0.0
        assert float(advantages[t]) == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(returns, advantages)


@FAST
@given(pack=packs())
def test_with_lam_and_gamma_one_the_return_does_not_depend_on_the_values(pack: Packed) -> None:
    zero = torch.zeros_like(pack.values)
    _, returns = pack.gae(1.0, 1.0)
    _, without = gae(pack.rewards, zero, pack.mask, pack.ids, bootstrap=pack.bootstrap)
    torch.testing.assert_close(returns, without)


@FAST
@given(pack=packs(), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_sequences_packed_together_are_as_each_alone(pack: Packed, gamma: float, lam: float) -> None:
    together, _ = pack.gae(gamma, lam)
    for index in range(int(pack.ids[-1]) + 1):
        own = pack.ids == index
        alone = Packed(
            rewards=pack.rewards[own],
            values=pack.values[own],
            mask=pack.mask[own],
            ids=torch.zeros(int(own.sum()), dtype=torch.long),
            bootstrap=pack.bootstrap[index : index + 1],
        )
        torch.testing.assert_close(alone.gae(gamma, lam)[0], together[own])


@FAST
@given(pack=packs(), gamma=st.floats(0, 1), data=st.data())
def test_a_sequence_cut_in_chunks_with_bootstrapped_returns_is_whole(
    pack: Packed, gamma: float, data: Any
) -> None:
    """With lam 1 what follows a cut is its return: V of the cut's far side plus A."""
    advantages, returns = pack.gae(gamma, 1.0)
    model = torch.nonzero((pack.ids == 0) & (pack.mask > 0)).squeeze(1).tolist()
    cut = data.draw(st.sampled_from(model)) if model else 0
    if cut == 0:
        return
    head = Packed(
        rewards=pack.rewards[:cut],
        values=pack.values[:cut],
        mask=pack.mask[:cut],
        ids=pack.ids[:cut],
        bootstrap=returns[cut : cut + 1],
    )
    torch.testing.assert_close(head.gae(gamma, 1.0)[0], advantages[:cut])


def test_a_long_sequence_beside_short_ones_is_exact_in_every_token() -> None:
    # V = 0, gamma 1, reward 1 at the end only: every token of the sequence has 1
    lengths = [1, 1000, 3, 257]
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    rewards = torch.zeros(len(ids), dtype=torch.float64)
    rewards[torch.tensor(lengths).cumsum(0) - 1] = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    advantages, _ = gae(rewards, torch.zeros_like(rewards), torch.ones_like(rewards), ids)
    assert advantages.tolist() == (ids + 1).tolist()


def test_results_are_detached_in_the_dtype_of_the_values_and_empty_for_no_tokens() -> None:
    values = torch.ones(2, requires_grad=True)
    advantages, returns = gae(torch.ones(2), values, torch.ones(2), torch.zeros(2, dtype=torch.long))
    assert (advantages.dtype, advantages.requires_grad, returns.requires_grad) == (
        torch.float32,
        False,
        False,
    )
    assert run([], []) == ([], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": torch.ones(3)}, "mask: got shape"),
        ({"mask": torch.full((2,), 0.5)}, "mask: got values other than 0 and 1"),
        ({"sequence_ids": torch.tensor([1, 0])}, "sequence_ids: got"),
        ({"bootstrap": torch.ones(2)}, "bootstrap: got shape"),
        ({"bootstrap": torch.tensor([math.nan])}, "bootstrap: got a number that is not finite"),
        ({"gamma": 1.5}, "gamma: got 1.5"),
        ({"lam": -0.1}, "lam: got -0.1"),
    ],
)
def test_a_malformed_argument_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run([0, 1], [0, 0], **options)


def test_a_number_that_is_not_finite_on_a_token_of_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="rewards: got a number that is not finite"):
        run([0, math.nan], [0, 0])
    with pytest.raises(ValueError, match="values: got a number that is not finite"):
        run([0, 0], [0, math.inf])
