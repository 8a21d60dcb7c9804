"""Rewards by step: the verifier's rewards of the steps of a batch become advantages of its tokens.

Shape suffixes: K steps, B completions of the batch in order, N reward components, T sampled tokens of a row.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from slipstream.algorithms import StepRewards, process_advantages
from slipstream.algorithms.segments import positions_in_segment, segment_sum
from slipstream.algorithms.spec import Advantage
from slipstream.learner.batches.rows import Row
from slipstream.learner.training.rewards import BatchRewards
from slipstream.records import Completion, Group


def step_rewards(groups: Sequence[Group], rewards: BatchRewards, weights: Mapping[str, float]) -> StepRewards:
    """Return the weighted rewards of a batch by step.

    A component that scored the steps of any completion counts by step. For a completion without scored steps,
    such as an invalid answer, its value is the reward of one step. All other components, the length penalty
    and the KL penalty among them, are rewards of whole completions. Steps that end with the same token add
    up.
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
        by_end = _steps_of(completion, counted) if scored_B[place] else {_last(completion): math.nan}
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
        step_T = steps.step_of(place_T, positions_in_segment(row.sequence_ids_T).cpu())
        advantages.append(advantage_K[step_T].to(row.shares_B.device) * row.shares_B[row.sequence_ids_T])
    return advantages


def token_rewards_of_row(steps: StepRewards, row: Row) -> torch.Tensor:
    """Return the reward of each step at its last token and 0 elsewhere, float64 [T] on the CPU, for `gae`.

    A withheld completion has 0 everywhere.
    """
    if not bool(row.mask_T.any()):
        return torch.zeros(row.mask_T.shape[0], dtype=torch.float64)
    places_B = row.places_B.cpu()
    lengths_B = torch.bincount(row.sequence_ids_T, minlength=places_B.shape[0]).cpu()
    starts_B = lengths_B.cumsum(0) - lengths_B
    total_K = steps.totals_K.nan_to_num(nan=0.0)
    sequences_B = torch.full_like(steps.outcomes_B, -1, dtype=torch.int64)
    sequences_B[places_B] = torch.arange(places_B.shape[0])
    sequence_K = sequences_B[steps.completions_K]
    in_row_K = (sequence_K >= 0) & (steps.ends_K >= 0)
    place_K = starts_B[sequence_K[in_row_K]] + steps.ends_K[in_row_K]
    return segment_sum(total_K[in_row_K], place_K, int(lengths_B.sum()))


def _steps_of(completion: Completion, weights: Mapping[str, float]) -> dict[int, float]:
    """Return the weighted reward of each step, by the index of its last sampled token."""
    sampled = [0]
    for bit in completion.mask:
        sampled.append(sampled[-1] + bit)
    by_end = {_last(completion): 0.0}
    for reward in completion.rewards:
        weight = weights.get(reward.name)
        if weight is None:
            continue
        if not reward.steps:
            by_end[_last(completion)] += weight * reward.value
        for step in reward.steps:  # a step may end with tokens of an environment, which have no loss
            end = min(max(sampled[step.token_end] - 1, 0), _last(completion))
            by_end[end] = by_end.get(end, 0.0) + weight * step.value
    return by_end


def _last(completion: Completion) -> int:
    """Return the index of the last sampled token, -1 without any."""
    return sum(completion.mask) - 1
