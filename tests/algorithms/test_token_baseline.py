"""The optimal token baseline, against numbers by hand and loops over Python floats."""

import math
from random import Random

import pytest
import torch
from slipstream.algorithms import group_advantages
from slipstream.algorithms.spec import OptimalToken
from slipstream.algorithms.token_baseline import path_energies, token_baselines, token_energies

ON_POLICY = OptimalToken(cap=None)


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_energy_of_a_token_is_the_squared_distance_of_its_one_hot_vector_to_the_policy() -> None:
    # p = .5, .3, .2: sum of squares .38; for y = 0: 1 - 1 + .38, and (1 - .5)^2 + .3^2 + .2^2 = .38, too
    p = double(0.5, 0.3, 0.2)
    sharper = p.square() / p.square().sum()
    assert token_energies(p.log(), sharper.log()).tolist() == pytest.approx([0.38, 0.78, 0.98])
    for own in range(3):
        one_hot = torch.nn.functional.one_hot(torch.tensor(own), 3)
        expected = float((one_hot - p).square().sum())
        assert float(token_energies(p.log(), sharper.log())[own]) == pytest.approx(expected)
    assert token_energies(double(0.0), double(0.0)).tolist() == [0.0]


def test_the_energies_add_up_along_a_sequence_by_the_square_of_a_truncated_ratio() -> None:
    energies, ids = double(0.5, 1.0, 0.25, 2.0, 1.0), torch.tensor([0, 0, 0, 1, 1])
    ratios, mask = double(0.0, math.log(1.5), math.log(8), math.log(0.5), 0.0), torch.tensor([1, 1, 1, 1, 0])
    # rho^2: 1, 2.25, 4 (8 is cut to 2), 0.25; the last token does not count
    path_energies_T = path_energies(OptimalToken(), energies, ratios, mask, ids)
    assert path_energies_T.tolist() == pytest.approx([0.5, 2.75, 3.75, 0.5, 0.5])
    assert path_energies(ON_POLICY, energies, ratios, mask, ids).tolist() == [0.5, 1.5, 1.75, 2.0, 2.0]


def test_the_baseline_of_a_step_leans_on_the_completion_of_the_larger_energy() -> None:
    # step 0: R 1 with W .5, R 0 with W 1.5: .5 / 2 = .25; step 1: the longer completion alone, its own reward
    baselines = token_baselines(double(1.0, 0.0, 1.0), double(0.5, 1.5, 1.0), torch.tensor([0, 0, 1]))
    assert baselines.tolist() == [0.25, 0.25, 1.0]
    assert token_baselines(double(1.0, 3.0), double(0.0, 0.0), torch.tensor([2, 2])).tolist() == [0.0, 0.0]


def test_equal_energies_give_the_mean_of_the_group() -> None:
    rewards, groups = double(0.0, 3.0, 6.0, 1.0, 4.0), torch.tensor([0, 0, 0, 1, 1])
    baselines = token_baselines(rewards, double(0.7, 0.7, 0.7, 0.2, 0.2), groups)
    assert (rewards - baselines).tolist() == pytest.approx([-3.0, 0.0, 3.0, -1.5, 1.5])


def test_the_variance_of_the_estimate_is_least_at_this_baseline() -> None:
    # E |g (R - b)|^2 with |g|^2 = W has its minimum at b = E W R / E W
    random = Random(0)
    rewards = [random.random() for _ in range(20)]
    energies = [random.uniform(0.1, 2.0) for _ in range(20)]

    def variance(b: float) -> float:
        return sum(w * (r - b) ** 2 for w, r in zip(energies, rewards, strict=True))

    best = float(token_baselines(double(*rewards), double(*energies), torch.zeros(20).long())[0])
    assert variance(best) < min(variance(best + 1e-3), variance(best - 1e-3), variance(sum(rewards) / 20))


def test_it_is_no_advantage_of_completions_and_the_module_is_named() -> None:
    with pytest.raises(ValueError, match=r"use slipstream\.algorithms\.token_baseline"):
        group_advantages({"kind": "optimal_token"}, torch.zeros(2), torch.tensor([0, 0]))


def test_shapes_that_differ_and_a_cap_below_1_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sharper_logprobs: got shape \[2\], needs \[3\]"):
        token_energies(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"optimal_token\.cap: got 0\.5, needs 1 or more"):
        OptimalToken(cap=0.5)
