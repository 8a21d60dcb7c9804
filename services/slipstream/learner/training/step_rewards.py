"""Rewards by step: the rewards of the steps of a batch become advantages of its tokens.

A step is the sampled tokens of a completion from the end of the step before it on, in the order of sampling.
The tokens of a step may lie in several segments.

Shape suffixes: K steps, B completions of the batch in order, N reward components, T sampled tokens of a row,
S sequences of a row, P pairs of a sequence and a step of its completion.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from slipstream.algorithms import StepRewards, process_advantages, segments
from slipstream.algorithms.spec import Advantage
from slipstream.learner.batches.rows import Row
from slipstream.learner.training.rewards import BatchRewards
from slipstream.records import Completion, Group, sampling_order


def step_rewards(groups: Sequence[Group], rewards: BatchRewards, weights: Mapping[str, float]) -> StepRewards:
    """Return the weighted rewards of a batch by step.

    A component that scored the steps of any completion counts by step. For a completion without scored steps,
    such as an invalid answer, its value is the reward of one step that ends with its last sampled token. All
    other components, the length penalty and the KL penalty among them, are rewards of whole completions.
    Steps that end with the same token add up.
    """
    completions = [completion for group in groups for completion in group.completions]
    by_step = {reward.name for c in completions for reward in c.rewards if reward.steps}
    whole_N = torch.tensor([name not in by_step for name in weights], dtype=torch.bool)
    whole_N = torch.nn.functional.pad(whole_N, (0, rewards.weights_N.shape[0] - len(weights)), value=True)
    outcomes_B = (rewards.components_BN * rewards.weights_N)[:, whole_N].sum(dim=1)
    scored_B = ~rewards.total_B.isnan()
    values, ends, owners = list[float](), list[int](), list[int]()
    for place, completion in enumerate(completions):
        counted = {name: weights[name] for name in by_step if name in weights}
        by_end = _steps_of(completion, counted) if scored_B[place] else {completion.sampled - 1: math.nan}
        for end in sorted(by_end):
            values.append(by_end[end])
            ends.append(end)
            owners.append(place)
    return StepRewards(
        values_K=torch.tensor(values, dtype=torch.float64),
        ends_K=torch.tensor(ends, dtype=torch.int64),
        completions_K=torch.tensor(owners, dtype=torch.int64),
        outcomes_B=torch.where(scored_B, outcomes_B, torch.nan),
    )


def advantages_by_step(
    spec: Advantage, steps: StepRewards, group_ids_B: torch.Tensor, rows: Sequence[Row]
) -> list[torch.Tensor]:
    """Return advantages [T], float32, of each row; duplicate answers share theirs."""
    advantage_K = process_advantages(spec, steps, group_ids_B)
    advantages = []
    for row in rows:
        if not bool(row.mask_T.any()):
            advantages.append(torch.zeros_like(row.mask_T))
            continue
        place_T = row.places_B[row.sequence_ids_T].cpu()
        step_T = steps.step_of(place_T, row.order_T.cpu())
        advantages.append(advantage_K[step_T].to(row.shares_B.device) * row.shares_B[row.sequence_ids_T])
    return advantages


def token_rewards_of_row(steps: StepRewards, row: Row) -> torch.Tensor:
    """Return the rewards of the steps at tokens of a row and 0 elsewhere, float64 [T] on the CPU, for `gae`.

    In each segment of a completion, the reward of a step is at the last token that was sampled up to the end
    of the step: the sum of the rewards from a token on is then that of the steps that end at it or later,
    whatever segments these lie in. A segment that began after the step has nothing of it. A withheld
    completion has 0 everywhere.
    """
    tokens = row.mask_T.shape[0]
    if not bool(row.mask_T.any()):
        return torch.zeros(tokens, dtype=torch.float64)
    sequence_T, places_S = row.sequence_ids_T.cpu(), row.places_B.cpu()
    sequence_P, step_P = (steps.completions_K == places_S[:, None]).nonzero(as_tuple=True)
    stride = int(steps.ends_K.max()) + 2
    key_T = sequence_T * stride + row.order_T.cpu()
    token_P = torch.searchsorted(key_T, sequence_P * stride + steps.ends_K[step_P], right=True) - 1
    here_P = (token_P >= 0) & (sequence_T[token_P.clamp(min=0)] == sequence_P)
    total_K = steps.totals_K.nan_to_num(nan=0.0)
    return segments.segment_sum(total_K[step_P[here_P]], token_P[here_P], tokens)


def _steps_of(completion: Completion, weights: Mapping[str, float]) -> dict[int, float]:
    """Return the weighted reward of each step, by the position of its last token in the order of sampling."""
    orders, last = sampling_order(completion), completion.sampled - 1
    by_end = {last: 0.0}
    for reward in completion.rewards:
        weight = weights.get(reward.name)
        if weight is None:
            continue
        if not reward.steps:
            by_end[last] += weight * reward.value
        for step in reward.steps:  # a step may end with tokens of an environment, which have no loss
            sampled = sum(completion.segments[step.segment].mask[: step.token_end])
            order = orders[step.segment]
            end = min(order[max(sampled - 1, 0)] if order else 0, last)
            by_end[end] = by_end.get(end, 0.0) + weight * step.value
    return by_end
