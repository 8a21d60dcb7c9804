"""Advantages from the rewards of one optimizer batch, with the group mean as the baseline.

Suffixes: _B completions, _S groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from slipstream.algorithms.checks import require_integers, require_shape
from slipstream.algorithms.resolve import resolve_advantage
from slipstream.algorithms.segments import segment_range, segment_sum
from slipstream.algorithms.spec import Advantage, BatchScaled, DrGrpo, Grpo, Rloo

EQUAL_REWARDS: Final = 1e-8
"""A group whose rewards span no more than this has advantages of exactly 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CentredRewards:
    """Rewards minus the mean of their group; exactly 0 where withheld, alone or in a group of equals."""

    centred_B: Tensor
    group_B: Tensor
    """Index of the group of each completion, 0..S-1."""
    scored_S: Tensor
    """Scored completions of each group."""
    scored: Tensor
    """Scored completions in groups that have two or more of them."""


def group_advantages(spec: Mapping[str, Any] | Advantage, rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Compute one advantage per completion.

    spec: an estimator of ADVANTAGES, as dataclass, {"kind": ...} or {"preset": ...}.
    rewards: [B], or [B, components], which are summed. NaN withholds the completion: its advantage is 0
        and no statistic sees it.
    group_ids: [B] integers; completions with the same id answer the same prompt, in any order and number.
    Returns [B] float32 on the device of rewards, computed in float64. Batch statistics are those of the
    completions passed in: pass the whole optimizer batch.
    Raises ValueError for mismatched shapes, infinite rewards, or a group of one completion.
    """
    advantage = resolve_advantage(spec)
    reward_B = _total(rewards)
    require_shape("group_ids", group_ids, tuple(reward_B.shape), "the completions of rewards")
    require_integers("group_ids", group_ids)
    centred = _centre(reward_B, _group_index(group_ids))
    estimate_B = _ESTIMATORS[advantage.kind](advantage, centred)
    return estimate_B.to(device=rewards.device, dtype=torch.float32)


def _total(rewards: Tensor) -> Tensor:
    if rewards.ndim not in (1, 2):
        raise ValueError(f"rewards: got shape {list(rewards.shape)}, needs [B] or [B, components]")
    if bool(rewards.isinf().any()):
        raise ValueError("rewards: got an infinite reward, needs finite ones (NaN for a withheld completion)")
    reward = rewards.detach().to(device="cpu", dtype=torch.float64)
    return reward if reward.ndim == 1 else reward.sum(dim=1)


def _group_index(group_ids: Tensor) -> Tensor:
    group_B: Tensor
    name_S, group_B, size_S = torch.unique(group_ids.cpu(), return_inverse=True, return_counts=True)
    lonely = name_S[size_S == 1].tolist()
    if lonely:
        raise ValueError(
            f"group_ids: got a single completion in group {lonely[0]} ({len(lonely)} such groups), "
            "a group baseline needs two or more"
        )
    return group_B


def _centre(reward_B: Tensor, group_B: Tensor) -> CentredRewards:
    groups = int(group_B.max()) + 1 if group_B.numel() else 0
    scored_B = ~reward_B.isnan()
    known_B, index_B = reward_B[scored_B], group_B[scored_B]
    scored_S = segment_sum(scored_B.to(torch.float64), group_B, groups)
    mean_S = segment_sum(known_B, index_B, groups) / scored_S.clamp(min=1)
    contrast_S = segment_range(known_B, index_B, groups) > EQUAL_REWARDS
    return CentredRewards(
        centred_B=torch.where(scored_B & contrast_S[group_B], reward_B - mean_S[group_B], 0.0),
        group_B=group_B,
        scored_S=scored_S,
        scored=scored_S[scored_S > 1].sum(),
    )


def _grpo(spec: Grpo, rewards: CentredRewards) -> Tensor:
    groups = rewards.scored_S.shape[0]
    square_S = segment_sum(rewards.centred_B.square(), rewards.group_B, groups)
    std_S = (square_S / (rewards.scored_S - spec.ddof).clamp(min=1)).sqrt()
    return rewards.centred_B / (std_S[rewards.group_B] + spec.epsilon)


def _dr_grpo(spec: DrGrpo, rewards: CentredRewards) -> Tensor:
    return rewards.centred_B


def _rloo(spec: Rloo, rewards: CentredRewards) -> Tensor:
    factor_S = rewards.scored_S / (rewards.scored_S - 1).clamp(min=1)
    return rewards.centred_B * factor_S[rewards.group_B]


def _batch_scaled(spec: BatchScaled, rewards: CentredRewards) -> Tensor:
    std = (rewards.centred_B.square().sum() / (rewards.scored - 1).clamp(min=1)).sqrt()
    return rewards.centred_B / (std + spec.epsilon)


_ESTIMATORS: Final[Mapping[str, Callable[[Any, CentredRewards], Tensor]]] = MappingProxyType(
    {
        "grpo": _grpo,
        "dr_grpo": _dr_grpo,
        "rloo": _rloo,
        "batch_scaled": _batch_scaled,
    }
)
