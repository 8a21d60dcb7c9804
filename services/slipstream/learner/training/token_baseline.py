"""Advantages by the optimal token baseline: over the groups of a minibatch, on all ranks.

Shape suffixes: T sampled tokens of a row, N tokens of the minibatch over all ranks, S group and position, B
completions of the batch.
"""

import torch

from slipstream.algorithms import segments, token_baseline
from slipstream.algorithms.advantages.centre import centre
from slipstream.algorithms.spec import OptimalToken
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.minibatch import Minibatch
from slipstream.learner.training.rewards import BatchRewards


def advantages_by_token(
    spec: OptimalToken, rewards: BatchRewards, minibatch: Minibatch, ranks: Ranks
) -> list[torch.Tensor]:
    """Return advantages [T], float32, of each row of one minibatch; duplicate answers share theirs.

    Only completions that train are in the baseline, not withheld, filtered or dropped ones. Each segment
    counts as a sequence: its energies and its positions begin with its own first token.
    """
    rows = minibatch.rows
    if not rows:
        return []
    groups = int(rewards.group_ids_B.max()) + 1
    centred_B = centre(rewards.total_B, rewards.group_ids_B, groups).value_N
    longest = int(rewards.lengths_B.max())
    rewards_T, energies_T, steps_T, masks_T = [], [], [], []
    for row, constants in zip(rows, minibatch.constants, strict=True):
        assert constants.old_T is not None, "optimal_token precomputes it"
        assert constants.energies_T is not None, "optimal_token precomputes it"
        place_T = row.places_B[row.sequence_ids_T].cpu()
        energy_T = token_baseline.path_energies(
            spec,
            constants.energies_T,
            constants.old_T - row.rollout_logprobs_T,
            row.mask_T,
            row.sequence_ids_T,
        )
        masks_T.append(row.mask_T.bool().cpu())
        energies_T.append(energy_T.cpu())
        rewards_T.append(centred_B[place_T])
        position_T = segments.positions_in_segment(row.sequence_ids_T).cpu()
        steps_T.append(rewards.group_ids_B[place_T] * longest + position_T)
    keep_T = torch.cat(masks_T)
    reward_N, energy_N, step_N = (
        ranks.gather(torch.cat(parts)[keep_T]) for parts in (rewards_T, energies_T, steps_T)
    )
    baseline_S = torch.zeros(groups * longest, dtype=torch.float64)
    baseline_S[step_N] = token_baseline.token_baselines(reward_N, energy_N, step_N)
    return [
        ((reward_T - baseline_S[step_T]) * mask_T).float().to(row.shares_B.device)
        * row.shares_B[row.sequence_ids_T]
        for reward_T, step_T, mask_T, row in zip(rewards_T, steps_T, masks_T, rows, strict=True)
    ]
