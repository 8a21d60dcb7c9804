"""Covariances of tokens, the tokens selected by covariance, and the two loss terms that use the selection."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch
from algorithms import loss_reference as reference
from algorithms.loss_batches import change, make_batch, one_token, run, spec_of
from slipstream.algorithms.covariance import draws, token_covariances
from slipstream.algorithms.segments import positions_in_segment
from slipstream.algorithms.spec import Cispo, ClipCov, Dppo, Gspo, Is, KlCov, Objective, PpoClip

OBJECTIVES: list[Objective] = [Is(), PpoClip(anchor="batch"), Cispo(), Gspo(), Dppo()]


def test_the_covariance_of_a_token_is_the_product_of_its_two_deviations() -> None:
    # l -1, -3, -2 with mean -2; A 2, -1, -1 with mean 0: 1 * 2, -1 * -1, 0 * -1; their mean is the covariance
    covariances = token_covariances(
        torch.tensor([-1.0, -3.0, -2.0]), torch.tensor([2.0, -1.0, -1.0]), (-2.0, 0.0)
    )
    assert covariances.tolist() == [2.0, 1.0, 0.0]
    shifted = token_covariances(torch.tensor([-1.0, -3.0]), torch.tensor([3.0, 1.0]), (-2.0, 2.0))
    assert shifted.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"advantages: got shape \[2\], needs \[3\]"):
        token_covariances(torch.zeros(3), torch.zeros(2), (0.0, 0.0))


def test_draws_know_a_token_by_its_place_and_position_alone() -> None:
    places, positions = torch.arange(200).repeat_interleave(50), torch.arange(50).repeat(200)
    numbers, order = draws(places, positions, seed=3), torch.randperm(10_000)
    assert torch.equal(draws(places[order], positions[order], seed=3), numbers[order])
    assert not torch.equal(draws(places, positions, seed=4), numbers)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert numbers.unique().numel() == 10_000
    # 10 bins of 1,000 in the mean, with a standard deviation of 30; neighbours do not go together
    assert torch.histc(numbers, 10, 0, 1).sub(1000).abs().max() < 150
    assert abs(float(torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))[0, 1])) < 0.04


def test_the_first_number_is_that_of_splitmix64() -> None:
    # three rounds of the generator's mixing from 0, by Python's integers of any size
    def mixed(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return value ^ (value >> 31)

    assert mixed(0) == 0xE220A8397B1DCDAF  # the published first output for the seed 0
    expected = mixed((mixed((mixed(7) + 5) % 2**64) + 2) % 2**64) >> 11
    assert float(draws(torch.tensor([5]), torch.tensor([2]), seed=7)[0]) == expected / 2**53


def test_positions_start_anew_in_each_sequence() -> None:
    assert positions_in_segment(torch.tensor([0, 0, 0, 1, 2, 2])).tolist() == [0, 1, 2, 0, 0, 1]
    assert positions_in_segment(torch.zeros(0, dtype=torch.long)).tolist() == []


def test_kl_cov_adds_the_distance_to_the_anchor_where_a_token_is_held() -> None:
    # A = 2, r = 1.5: L = -2 * 1.5 + 0.5 * log 1.5; slope -3 + 0.5. Below the anchor the slope turns.
    spec = spec_of(Is(), kl_cov=KlCov(coefficient=0.5))
    held, free = torch.tensor([True]), torch.tensor([False])
    above, below = one_token(-1.0, -1.0 - math.log(1.5), 2.0), one_token(-1.0, -1.0 + math.log(2), 2.0)
    assert run(spec, above, held=held).loss == pytest.approx(-3 + 0.5 * math.log(1.5))
    assert run(spec, above, held=held).gradient.tolist() == pytest.approx([-2.5])
    assert run(spec, below, held=held).gradient.tolist() == pytest.approx([-1 - 0.5])
    assert run(spec, above, held=free).gradient.tolist() == pytest.approx([-3.0])
    assert run(spec, one_token(-1.0, -1.0, 2.0), held=held).gradient.tolist() == pytest.approx([-2.0])


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_value_and_gradient_of_both_are_those_of_the_reference(objective: Objective) -> None:
    random = Random(5)
    batch = change(
        make_batch(6, sequences=12),
        lambda token: replace(token, selected=random.random() < 0.6, held=random.random() < 0.4),
    )
    tokens = [token for sequence in batch for token in sequence.tokens]
    for kind in ("token_mean", "seq_mean_token_mean"):
        spec = spec_of(objective, kind, clip_cov=ClipCov(), kl_cov=KlCov(coefficient=0.3))
        result = run(
            spec,
            batch,
            selected=torch.tensor([token.selected for token in tokens]),
            held=torch.tensor([token.held for token in tokens]),
        )
        assert result.loss == pytest.approx(reference.loss(spec, batch), rel=1e-9)
        assert result.gradient.tolist() == pytest.approx(reference.gradient(spec, batch), rel=1e-9, abs=1e-12)
        if isinstance(objective, Gspo):  # gspo has one ratio a sequence: a mask by token has no value
            continue
        difference = reference.finite_differences(spec, batch)
        assert reference.gradient(spec, batch) == pytest.approx(difference, rel=1e-6, abs=2e-8)
