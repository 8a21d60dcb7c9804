"""Rewards of the steps of a completion (from a process reward model): as one reward, or as token rewards.

Suffixes: _K steps, _T packed tokens, _B sequences.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from slipstream.algorithms import checks
from slipstream.algorithms.generalized_advantage import gae
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.spec.checks import require_choice

ProcessReward = Literal["last", "mean", "min", "product"]
"""How the scores of the steps of a completion become one reward."""


def process_reward(
    step_scores: Tensor, step_sequence_ids: Tensor, how: ProcessReward, sequences: int | None = None
) -> Tensor:
    """Return one reward per sequence from the scores of its steps, float64 [B] on their device.

    step_scores: [K]; the steps of a sequence in their order, sequences in any order.
    step_sequence_ids: [K] integers in 0..B - 1.
    how: last, mean, min or product. `min` suits a task without an outcome; with one, pass outcome and mean
        as two components to group_advantages, weighted.
    sequences: B; default the largest id + 1. A sequence without steps has NaN, which withholds it, and so
        has one with a NaN score (for last: a NaN last score).
    Raises ValueError for mismatched shapes, ids out of range or infinite scores.
    """
    require_choice("how", how, get_args(ProcessReward))
    size = _check_steps(step_scores, step_sequence_ids, sequences)
    score_K = step_scores.detach().to(torch.float64)
    reward_B = _HOW[how](score_K, step_sequence_ids.long(), size)
    steps_B = torch.bincount(step_sequence_ids, minlength=size)
    return torch.where(steps_B > 0, reward_B, torch.nan)


def token_rewards(step_scores: Tensor, step_ends: Tensor, sequence_ids: Tensor) -> Tensor:
    """Return the score of each step at its last token and 0 elsewhere, float64 [T]: the rewards of `gae`.

    step_scores: [K] finite. step_ends: [K] index in 0..T - 1 of the last token of each step; the scores of
        steps that end on the same token add up. sequence_ids: [T].
    Raises ValueError for mismatched shapes, an index out of range or a score that is not finite.
    """
    _check_scores(step_scores, "step_ends", step_ends)
    checks.count_sequences(sequence_ids)
    tokens = sequence_ids.shape[0]
    if not bool(((step_ends >= 0) & (step_ends < tokens)).all()):
        raise ValueError(f"step_ends: got {step_ends.tolist()[:8]}..., needs indices from 0 to {tokens - 1}")
    if not bool(step_scores.isfinite().all()):
        raise ValueError("step_scores: got a number that is not finite, needs finite ones")
    return segment_sum(step_scores.detach().to(torch.float64), step_ends.long(), tokens)


def step_rewards_to_go(
    step_scores: Tensor, step_ends: Tensor, mask: Tensor, sequence_ids: Tensor, *, gamma: float = 1.0
) -> Tensor:
    """Return the discounted sum of the step scores from each token on, float64 [T], with 0 where mask is 0.

    The arguments are those of token_rewards and gae: with no critic (V = 0) and lam 1, gae is this sum.
    gamma: discount per token of the model; environment tokens (mask 0) are none.
    Raises ValueError as token_rewards and gae do, and for a step that ends on an environment token.
    """
    reward_T = token_rewards(step_scores, step_ends, sequence_ids)
    checks.require_shape("mask", mask, tuple(sequence_ids.shape), "sequence_ids")
    checks.require_mask("mask", mask)
    if not bool(mask.bool()[step_ends.long()].all()):
        raise ValueError(
            "step_ends: got a token where mask is 0, needs the last token of the model in each step"
        )
    advantage_T, _ = gae(reward_T, torch.zeros_like(reward_T), mask, sequence_ids, gamma=gamma)
    return advantage_T


def _check_scores(step_scores: Tensor, name: str, ids: Tensor) -> None:
    if step_scores.ndim != 1:
        raise ValueError(f"step_scores: got shape {list(step_scores.shape)}, needs [K]")
    checks.require_shape(name, ids, tuple(step_scores.shape), "step_scores")
    checks.require_integers(name, ids)


def _check_steps(step_scores: Tensor, step_sequence_ids: Tensor, sequences: int | None) -> int:
    _check_scores(step_scores, "step_sequence_ids", step_sequence_ids)
    if bool(step_scores.isinf().any()):
        raise ValueError("step_scores: got an infinite score, needs finite ones (NaN for an unknown one)")
    low, high = (int(x) for x in step_sequence_ids.aminmax()) if step_sequence_ids.numel() else (0, -1)
    size = high + 1 if sequences is None else sequences
    if low < 0 or high >= size:
        raise ValueError(f"step_sequence_ids: got ids from {low} to {high}, needs 0 to {size - 1}")
    return size


def _last(score_K: Tensor, id_K: Tensor, sequences: int) -> Tensor:
    position_K = torch.arange(id_K.shape[0], device=id_K.device)
    last_B = position_K.new_zeros(sequences).scatter_reduce(0, id_K, position_K, "amax")
    return score_K[last_B] if score_K.numel() else score_K.new_zeros(sequences)


def _mean(score_K: Tensor, id_K: Tensor, sequences: int) -> Tensor:
    steps_B = torch.bincount(id_K, minlength=sequences)
    return segment_sum(score_K, id_K, sequences) / steps_B.clamp(min=1)


def _min(score_K: Tensor, id_K: Tensor, sequences: int) -> Tensor:
    return score_K.new_full((sequences,), torch.inf).scatter_reduce(0, id_K, score_K, "amin")


def _product(score_K: Tensor, id_K: Tensor, sequences: int) -> Tensor:
    return score_K.new_ones(sequences).scatter_reduce(0, id_K, score_K, "prod")


_HOW: Final[Mapping[str, Callable[[Tensor, Tensor, int], Tensor]]] = MappingProxyType(
    {"last": _last, "mean": _mean, "min": _min, "product": _product}
)
