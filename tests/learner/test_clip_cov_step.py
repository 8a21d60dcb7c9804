"""The tokens that clip_cov draws in a training step: their number, their means, a new draw per step."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from learner.fakes import completion, config_with, group
from learner.test_algorithm_in_a_step import chosen, logprobs_of, moved
from slipstream.algorithms import resolve_loss
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep


def dropped_by_clip_cov(
    logprobs: list[float], advantages: list[float], *, share: float, high: float, seed: int
) -> list[int]:
    """Of the six tokens of two completions."""
    loss = resolve_loss({"preset": "clip_cov", "clip_cov": {"share": share, "low": 0.5, "high": high}})
    kept_T = chosen(loss, logprobs, advantages, seed=seed).selected_T
    assert kept_T is not None
    return [t for t, kept in enumerate(kept_T.tolist()) if not kept]


def test_the_share_is_of_all_tokens_and_not_of_those_between_the_bounds() -> None:
    # cov 1, 1, -1, -1, 1, 1: a half of six tokens is dropped of the four between the bounds
    logprobs = [-1.0, -1.0, -3.0, -1.0, -3.0, -3.0]
    for seed in range(5):
        dropped = dropped_by_clip_cov(logprobs, [1.0, -1.0], share=0.5, high=2.0, seed=seed)
        assert len(dropped) == 3
        assert set(dropped) < {0, 1, 4, 5}


def test_covariances_are_taken_around_the_mean_advantage() -> None:
    # A 2, 2, 2, 0, 0, 0 with mean 1: cov 1, 0, -1, -1, 0, 1. Around 0 they would be 2, 0, -2, 0, 0, 0.
    logprobs = [-1.0, -2.0, -3.0, -1.0, -2.0, -3.0]
    assert dropped_by_clip_cov(logprobs, [2.0, 0.0], share=1.0, high=1.5, seed=0) == [0, 5]


def test_kl_cov_takes_covariances_around_the_mean_advantage_as_well() -> None:
    # l 1.5, 0, -1.5, 1, 0, -1 above their mean, A 1 above and 1 below theirs: cov 1.5, 0, -1.5, -1, 0, 1.
    # Around 0 they would be 4.5, 0, -4.5, 1, 0, -1.
    loss = resolve_loss({"preset": "kl_cov", "kl_cov": {"share": 0.34}})
    held_T = chosen(loss, [-0.5, -2.0, -3.5, -1.0, -2.0, -3.0], [3.0, 1.0]).held_T
    assert held_T is not None
    assert held_T.nonzero().flatten().tolist() == [0, 5]


def test_every_step_draws_anew(new_policy: Callable[[], Policy]) -> None:
    groups = [group(completion(range(5, 13)), completion(range(20, 28), reward=0.0))]
    algorithm: dict[str, Any] = {
        "preset": "grpo",
        "advantage": {"kind": "dr_grpo"},
        "objective": {"kind": "is"},
        "aggregation": "token_mean",
        "clip_cov": {"share": 0.125, "low": 1e-9, "high": 1e9},
    }
    training = TrainingStep(moved(new_policy(), by=0.3), config_with(algorithm=algorithm))
    now_T = logprobs_of(training.policy, groups).detach()
    A_T = torch.tensor([0.5, -0.5]).repeat_interleave(8)
    likely = ((now_T - now_T.mean()) * A_T > 0).nonzero().flatten().tolist()
    assert len(likely) > 4
    value_T = -A_T * (now_T + 2).exp() / 16  # mu is -2 a token
    loss_of = {pair: float(value_T.sum() - value_T[list(pair)].sum()) for pair in combinations(likely, 2)}

    def drawn(version: int) -> tuple[int, int]:
        """The two tokens without which the loss is that of the step, whose update is not made."""
        loss = training.train(groups, version=version, update=lambda _: None).loss
        (pair,) = (pair for pair, value in loss_of.items() if value == pytest.approx(loss, rel=1e-5))
        return pair

    pairs = [drawn(version) for version in range(3)]
    assert len(set(pairs)) > 1
    assert drawn(2) == pairs[2]
