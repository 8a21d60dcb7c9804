"""Advantages from rewards by step (process supervision): one for each step, shared by the tokens of the step.

Suffixes: _K steps, _B completions, _S groups, _T tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms import checks, resolve
from slipstream.algorithms.advantages.batch import deviation, deviation_std
from slipstream.algorithms.advantages.centre import EQUAL_REWARDS, centre
from slipstream.algorithms.segments import segment_discounted_sum, segment_range, segment_sum
from slipstream.algorithms.spec import Advantage, Grpo, ReinforcePp, Rloo
from slipstream.functions import load_function


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRewards:
    """The rewards of one optimizer batch by step; every completion has at least one step.

    Raises ValueError for shapes that differ, completions that do not rise from 0 to B - 1, ends that do not
    rise within a completion, and infinite rewards.
    """

    values_K: Tensor
    """Reward of each step; NaN withholds its completion."""
    ends_K: Tensor
    """Last token of each step, counted from 0 among the sampled tokens of its completion in the order of
    sampling; -1 for the only step of a completion without any."""
    completions_K: Tensor
    """Completion of each step, 0..B - 1 in order."""
    outcomes_B: Tensor
    """Rewards of the completions as a whole, 0 where there are none; NaN withholds a completion."""

    def __post_init__(self) -> None:
        size, sequences = self.values_K.shape[0], self.outcomes_B.shape[0]
        for name in ("ends_K", "completions_K"):
            checks.require_shape(name, getattr(self, name), (size,), "values_K")
            checks.require_integers(name, getattr(self, name))
        change_K = self.completions_K.diff(prepend=self.completions_K.new_tensor([-1]))
        last = int(self.completions_K[-1]) if size else -1
        if not bool(((change_K == 0) | (change_K == 1)).all()) or last != sequences - 1:
            raise ValueError(
                f"completions_K: got {self.completions_K.tolist()[:8]}, needs every completion from 0 to "
                f"{sequences - 1} in order, with at least one step"
            )
        rises_K = self.ends_K > self.ends_K.roll(1)
        if not bool((rises_K | (change_K == 1)).all()) or bool((self.ends_K < -1).any()):
            raise ValueError(
                f"ends_K: got {self.ends_K.tolist()[:8]}, needs tokens from 0 on that rise within a "
                "completion (-1 in one without tokens)"
            )
        if bool(self.values_K.isinf().any()) or bool(self.outcomes_B.isinf().any()):
            raise ValueError("step rewards: got an infinite one, needs finite ones (NaN for an unknown one)")

    @property
    def last_B(self) -> Tensor:
        """Index of the last step of each completion."""
        return torch.bincount(self.completions_K, minlength=self.outcomes_B.shape[0]).cumsum(0) - 1

    @property
    def withheld_B(self) -> Tensor:
        """Whether a reward of the completion is unknown, bool."""
        steps_B = segment_sum(self.values_K.isnan().double(), self.completions_K, self.outcomes_B.shape[0])
        return (steps_B > 0) | self.outcomes_B.isnan()

    @property
    def totals_K(self) -> Tensor:
        """Reward of each step, with that of its completion on the last one; NaN in withheld completions."""
        total_K = self.values_K.double().index_add(0, self.last_B, self.outcomes_B.double())
        return torch.where(self.withheld_B[self.completions_K], torch.nan, total_K)

    @property
    def tokens_K(self) -> Tensor:
        """Tokens of each step: those after the step before it, up to its own last one."""
        first_K = self.completions_K.diff(prepend=self.completions_K.new_tensor([-1])) == 1
        return self.ends_K - torch.where(first_K, -1, self.ends_K.roll(1))

    def step_of(self, completions_T: Tensor, positions_T: Tensor) -> Tensor:
        """Return the step of each token, [T] in 0..K - 1, by its completion and its sampled position.

        Raises ValueError for a token behind the last step of its completion.
        """
        stride = int(self.ends_K.max()) + 2 if self.ends_K.numel() else 1
        key_K = self.completions_K * stride + self.ends_K
        step_T = torch.searchsorted(key_K, completions_T * stride + positions_T.clamp(max=stride - 1))
        behind_T = positions_T > self.ends_K[self.last_B][completions_T]
        if bool(behind_T.any()):
            raise ValueError(
                f"positions_T: got token {int(positions_T[behind_T][0])} of completion "
                f"{int(completions_T[behind_T][0])}, whose last step ends before it"
            )
        return step_T


def process_advantages(
    spec: Mapping[str, Any] | Advantage, rewards: StepRewards, group_ids: Tensor
) -> Tensor:
    """Return one advantage for each step, [K] float32: that of each of its tokens.

    grpo: r~ = (r - mean) / (std + epsilon) with the mean and std of the rewards of all steps of the group,
        and A = the sum of r~ over this step and the later ones. See DeepSeekMath, arXiv:2402.03300, 4.1.3.
    rloo: A = sum over this step and the later ones of (r - b), b being the mean over the other completions
        of the group of the mean reward of their steps; the rewards of whole completions are added with the
        leave-one-out baseline of their own. See Process Reinforcement through Implicit Rewards (PRIME),
        arXiv:2502.01456, there with the tokens as steps.
    reinforce_pp, without group_mean and with weighting token: A = (G - mean of G) / (std of G + epsilon), G
        the sum of the rewards from this step on, mean and std over the tokens of the batch. See REINFORCE++,
        arXiv:2501.03262.
    With grpo and reinforce_pp the reward of a whole completion is part of that of its last step. A completion
    of one step has the advantage that group_advantages gives for its total; groups whose step rewards span no
    more than EQUAL_REWARDS have 0, and so has a group of which one completion is scored (not reinforce_pp).

    spec: as for group_advantages. group_ids: [B] integers. Batch statistics are those of the completions
    passed in: pass the whole optimizer batch, of all ranks. Computed in float64 on the CPU.
    Raises ValueError for mismatched shapes, and for an estimator that no source defines by step; gae takes
    rewards by token.
    """
    advantage = resolve.resolve_advantage(spec)
    problem = advantage.undefined_by_step
    if problem is not None:
        raise ValueError(f"{advantage.kind}: {problem.reason}; {problem.remedy}")
    if advantage.implementation_by_step is None:
        raise ValueError("gae: one advantage a token, from a critic's values; use slipstream.algorithms.gae")
    checks.require_shape(
        "group_ids", group_ids, tuple(rewards.outcomes_B.shape), "the completions of rewards"
    )
    checks.require_integers("group_ids", group_ids)
    _, group_B = torch.unique(group_ids.cpu(), return_inverse=True)
    estimate: Callable[..., Tensor] = load_function(advantage.implementation_by_step)
    advantage_K = estimate(advantage, rewards, group_B)
    return torch.where(rewards.withheld_B[rewards.completions_K], 0.0, advantage_K).float()


def grpo(spec: Grpo, rewards: StepRewards, group_B: Tensor) -> Tensor:
    centred = centre(rewards.totals_K, group_B[rewards.completions_K], _groups(group_B))
    scaled_K = centred.value_N / (centred.std_N(spec.ddof) + spec.epsilon)
    compared_K = _compared(rewards, group_B)[rewards.completions_K]
    return segment_discounted_sum(torch.where(compared_K, scaled_K, 0.0), rewards.completions_K, 1.0)


def rloo(spec: Rloo, rewards: StepRewards, group_B: Tensor) -> Tensor:
    sequences, groups, id_K = group_B.shape[0], _groups(group_B), rewards.completions_K
    scored_B = ~rewards.withheld_B
    value_K = torch.where(scored_B[id_K], rewards.values_K.double(), 0.0)
    mean_B = segment_sum(value_K, id_K, sequences) / torch.bincount(id_K, minlength=sequences)
    scored_S = segment_sum(scored_B.double(), group_B, groups)
    sum_S = segment_sum(mean_B, group_B, groups)
    baseline_B = (sum_S[group_B] - mean_B) / (scored_S[group_B] - 1).clamp(min=1)
    known_K = scored_B[id_K]
    contrast_S = segment_range(value_K[known_K], group_B[id_K][known_K], groups) > EQUAL_REWARDS
    counts_B = _compared(rewards, group_B) & contrast_S[group_B]
    excess_K = torch.where(counts_B[id_K], value_K - baseline_B[id_K], 0.0)
    outcome_B = torch.where(scored_B, rewards.outcomes_B.double(), torch.nan)
    outcome_A_B = centre(outcome_B, group_B, groups).leave_one_out_N()
    return segment_discounted_sum(excess_K, id_K, 1.0) + outcome_A_B[id_K]


def reinforce_pp(spec: ReinforcePp, rewards: StepRewards, group_B: Tensor) -> Tensor:
    total_K = rewards.totals_K
    to_go_K = segment_discounted_sum(total_K, rewards.completions_K, 1.0)
    count_K = torch.where(total_K.isnan(), 0.0, rewards.tokens_K.double())
    deviation_K = deviation(to_go_K, count_K)
    return deviation_K / (deviation_std(deviation_K, count_K) + spec.epsilon)


def _groups(group_B: Tensor) -> int:
    return int(group_B.max()) + 1 if group_B.numel() else 0


def _compared(rewards: StepRewards, group_B: Tensor) -> Tensor:
    """Whether a completion is scored and its group has another scored one, bool [B]."""
    scored_B = ~rewards.withheld_B
    scored_S = segment_sum(scored_B.double(), group_B, _groups(group_B))
    return scored_B & (scored_S > 1)[group_B]
