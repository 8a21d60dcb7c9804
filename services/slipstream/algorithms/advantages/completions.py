"""The checked input of every estimator: rewards, groups, lengths and baselines of one batch, in float64.

Suffixes: _B completions, _N reward components, _S groups.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms.advantages.centre import Centred, centre
from slipstream.algorithms.checks import require_integers, require_shape, require_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """One batch on the CPU, in float64; a NaN reward is one that was withheld."""

    reward_BN: Tensor
    """0 where a component does not apply to the completion."""
    applies_BN: Tensor
    """Whether a component applies to the completion, bool."""
    weight_N: Tensor
    group_B: Tensor
    """Index of the group of each completion, 0..groups - 1."""
    groups: int
    length_B: Tensor | None
    baseline_B: Tensor | None

    @property
    def total_B(self) -> Tensor:
        """Weighted sum of the components that apply; NaN where one of them is."""
        return component_sum(self.reward_BN * self.weight_N)

    def centred(self) -> Centred:
        """The totals minus the mean of their group."""
        return centre(self.total_B, self.group_B, self.groups)

    def lengths_for(self, estimator: str) -> Tensor:
        """Tokens of each completion, [B]. Raises ValueError where none were passed."""
        if self.length_B is None:
            raise ValueError(f"lengths: got None, {estimator} needs the tokens of each completion, [B]")
        return self.length_B

    def baselines_for(self, estimator: str) -> Tensor:
        """Baseline of each completion, [B]. Raises ValueError where a scored one has none."""
        if self.baseline_B is None:
            raise ValueError(
                f"baselines: got None, {estimator} needs the average of each completion's key, [B]"
            )
        if not bool((self.baseline_B.isfinite() | self.total_B.isnan()).all()):
            raise ValueError(
                "baselines: got a value that is not finite for a scored completion, needs numbers"
            )
        return self.baseline_B


def component_sum(value_BN: Tensor) -> Tensor:
    """Sum over the components, one after the other: a component of 0 changes no bit of the sum."""
    return torch.stack([value_BN[:, n] for n in range(value_BN.shape[1])]).cumsum(dim=0)[-1]


def make_completions(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    applies: Tensor | None,
    weights: Tensor | None,
    lengths: Tensor | None,
    baselines: Tensor | None,
    needs_groups: bool,
) -> Completions:
    """Return the batch that the arguments of group_advantages describe. Raises ValueError as it does."""
    reward_BN = _rewards(rewards)
    require_shape("group_ids", group_ids, (reward_BN.shape[0],), "the completions of rewards")
    require_integers("group_ids", group_ids)
    names_S, group_B = torch.unique(group_ids.cpu(), return_inverse=True)
    if needs_groups:
        _refuse_lonely(names_S, group_B)
    applies_BN = _applies(applies, reward_BN)
    return Completions(
        reward_BN=torch.where(applies_BN, reward_BN, 0.0),
        applies_BN=applies_BN,
        weight_N=_weights(weights, reward_BN.shape[1]),
        group_B=group_B,
        groups=names_S.shape[0],
        length_B=_lengths(lengths, reward_BN.shape[0]),
        baseline_B=_per_completion("baselines", baselines, reward_BN.shape[0]),
    )


def _rewards(rewards: Tensor) -> Tensor:
    require_tensor("rewards", rewards)
    if rewards.ndim not in (1, 2) or (rewards.ndim == 2 and rewards.shape[1] == 0):
        raise ValueError(f"rewards: got shape {list(rewards.shape)}, needs [B] or [B, components]")
    if bool(rewards.isinf().any()):
        raise ValueError("rewards: got an infinite reward, needs finite ones (NaN for a withheld completion)")
    reward = _double(rewards)
    return reward if reward.ndim == 2 else reward.unsqueeze(1)


def _applies(applies: Tensor | None, reward_BN: Tensor) -> Tensor:
    if applies is None:
        return torch.ones_like(reward_BN, dtype=torch.bool)
    require_shape("applies", applies, tuple(reward_BN.shape), "rewards, [B, components]")
    if applies.dtype != torch.bool:
        raise ValueError(f"applies: got {applies.dtype}, needs bool")
    return applies.cpu()


def _refuse_lonely(names_S: Tensor, group_B: Tensor) -> None:
    lonely = names_S[torch.bincount(group_B, minlength=names_S.shape[0]) == 1].tolist()
    if lonely:
        raise ValueError(
            f"group_ids: got a single completion in group {lonely[0]} ({len(lonely)} such groups), "
            "a group baseline needs two or more"
        )


def _weights(weights: Tensor | None, components: int) -> Tensor:
    if weights is None:
        return torch.ones(components, dtype=torch.float64)
    require_shape("weights", weights, (components,), "the components of rewards")
    if not bool(weights.isfinite().all()):
        raise ValueError(f"weights: got {weights.tolist()}, needs finite numbers")
    return _double(weights)


def _lengths(lengths: Tensor | None, size: int) -> Tensor | None:
    length_B = _per_completion("lengths", lengths, size)
    if length_B is not None and not bool((length_B.isfinite() & (length_B >= 0)).all()):
        raise ValueError("lengths: got a negative or non-finite length, needs the tokens of each completion")
    return length_B


def _per_completion(name: str, value: Tensor | None, size: int) -> Tensor | None:
    if value is None:
        return None
    require_shape(name, value, (size,), "the completions of rewards")
    return _double(value)


def _double(value: Tensor) -> Tensor:
    return value.detach().to(device="cpu", dtype=torch.float64)
