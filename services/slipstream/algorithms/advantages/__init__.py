"""Advantages from the rewards of one optimizer batch: checks the input, then calls the estimator by name.

Suffixes: _B completions, _N reward components, _S groups.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms.advantages.completions import Completions, make_completions
from slipstream.algorithms.resolve import resolve_advantage
from slipstream.algorithms.spec import Advantage, Gae, OptimalToken
from slipstream.functions import load_function


def group_advantages(
    spec: Mapping[str, Any] | Advantage,
    rewards: Tensor,
    group_ids: Tensor,
    *,
    applies: Tensor | None = None,
    weights: Tensor | None = None,
    lengths: Tensor | None = None,
    baselines: Tensor | None = None,
) -> Tensor:
    """Compute one advantage per completion.

    spec: an estimator of ADVANTAGES, as dataclass, {"kind": ...} or {"preset": ...}.
    rewards: [B], or [B, components], of which the weighted sum counts; gdpo normalises each component first.
        NaN withholds a completion: its advantage is 0 and no statistic sees it. One NaN component withholds
        the sum, whatever its weight; gdpo leaves out only that component, unless all are NaN.
    group_ids: [B] integers; completions with the same id answer the same prompt, in any order and number.
    applies: [B, components] bool, all by default; a component that does not apply to a completion is in no
        sum and in no statistic, whatever its value. In a run the completions of a group have one source, and
        with it the same components.
    weights: [components], 1 each by default.
    lengths: [B] tokens of each completion; opo and reinforce_pp with weighting token need them.
    baselines: [B] average reward of each completion's key before this batch (`RunningBaselines.of`); ema
        needs them, and mixed does unless its lam is 1. Read where the reward is not NaN.
    Returns [B] float32 on the device of rewards, computed in float64 on the CPU. Batch statistics are those
    of the completions passed in: pass the whole optimizer batch, of all ranks.

    Rewards of a group that span no more than EQUAL_REWARDS have advantages of exactly 0. The exceptions are
    what their options ask for: a batch mean (batch_scaled with center batch, reinforce_pp without group_mean;
    there a batch of equal rewards has exactly 0), token weighting (the token mean of the others shifts
    them), a baseline from history, and gopo with ordinal ties. A group of which one member is scored has 0,
    too, and stays out of batch statistics, save for ema and reinforce_pp without group_mean.
    Raises ValueError for mismatched shapes, infinite rewards, a missing argument, a group of one completion
    where the estimator compares within groups, or gae and optimal_token, which are functions of their own.
    """
    advantage = resolve_advantage(spec)
    if isinstance(advantage, Gae):
        raise ValueError("gae: one advantage a token, from a critic's values; use slipstream.algorithms.gae")
    if isinstance(advantage, OptimalToken):
        raise ValueError(
            "optimal_token: one advantage a token, from the logprobs of whole groups; use "
            "slipstream.algorithms.token_baseline"
        )
    completions = make_completions(
        rewards,
        group_ids,
        applies=applies,
        weights=weights,
        lengths=lengths,
        baselines=baselines,
        needs_groups=advantage.needs_groups,
    )
    estimate_B = _function(advantage.implementation)(advantage, completions)
    return estimate_B.to(device=rewards.device, dtype=torch.float32)


@cache
def _function(name: str) -> Callable[[Any, Completions], Tensor]:
    return load_function(name)
