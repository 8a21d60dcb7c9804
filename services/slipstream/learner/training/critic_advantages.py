"""Advantages and returns of each token, by the values of a critic.

Shape suffixes: T sampled tokens of a row, B sequences of a row or completions of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms import StepRewards, final_rewards, gae, moments, reward_penalty, whiten
from slipstream.algorithms.spec import Gae, Kl
from slipstream.learner.batches.rows import Row
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.minibatch import Minibatch, RowConstants
from slipstream.learner.training.step_rewards import token_rewards_of_row
from slipstream.records import FinishReason, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """Advantages of the tokens of one row, and the targets of its values, in units of reward."""

    advantages_T: torch.Tensor
    returns_T: torch.Tensor
    """The targets of the critic."""


def critic_advantages(
    spec: Gae,
    kl: Kl | None,
    groups: Sequence[Group],
    rewards_B: torch.Tensor,
    minibatches: Sequence[Minibatch],
    ranks: Ranks,
    *,
    steps: StepRewards | None = None,
) -> list[list[TokenAdvantages]]:
    """Return the advantages of each row of each minibatch, by values and logprobs before the first update.

    Each segment of a completion ends as the completion does: with its reward, and with the critic's value
    after it where a cut completion is bootstrapped.
    kl: with the placement `reward`, its penalty is subtracted from the reward of each token.
    rewards_B: rewards of all completions of the batch.
    steps: rewards by step, in the place of `rewards_B`, at the tokens of `token_rewards_of_row`.
    A row with a value that is not finite gets NaN, and the step skips its minibatch.
    """
    rows = [row for minibatch in minibatches for row in minibatch.rows]
    constants = [each for minibatch in minibatches for each in minibatch.constants]
    penalty = kl.coefficient if kl is not None and kl.placement == "reward" else 0.0
    if steps is None:
        rewards = [_final_rewards(row, rewards_B) for row in rows]
    else:
        rewards = [token_rewards_of_row(steps, row) for row in rows]
    advantages = iter(_of_rows(spec, groups, rewards, rows, constants, penalty, ranks))
    return [[next(advantages) for _ in minibatch.rows] for minibatch in minibatches]


def _of_rows(
    spec: Gae,
    groups: Sequence[Group],
    rewards: Sequence[torch.Tensor],
    rows: Sequence[Row],
    constants: Sequence[RowConstants],
    penalty: float,
    ranks: Ranks,
) -> list[TokenAdvantages]:
    """Return the advantages of all rows.

    rewards: [T] of each row. penalty: the coefficient of the KL term, 0 for none.
    """
    bootstrapped = (FinishReason.LENGTH,) if spec.truncated == "bootstrap" else ()
    cut_B = torch.tensor([c.finish_reason in bootstrapped for g in groups for c in g.completions])
    advantages = [
        _of_row(spec, row, constant, reward_T, cut_B, penalty)
        for row, constant, reward_T in zip(rows, constants, rewards, strict=True)
    ]
    if spec.whiten and advantages:
        advantages = _whitened(spec, advantages, rows, ranks)
    return [
        replace(each, advantages_T=each.advantages_T * row.shares_B[row.sequence_ids_T])
        for each, row in zip(advantages, rows, strict=True)
    ]


def _of_row(
    spec: Gae, row: Row, constants: RowConstants, reward_T: torch.Tensor, cut_B: torch.Tensor, penalty: float
) -> TokenAdvantages:
    """Return the advantages before whitening, and the returns."""
    values = constants.values
    assert values is not None, "row constants have values wherever there is a critic"
    nan_T = torch.full_like(values.before_T, torch.nan)
    if not bool(values.before_T.isfinite().all() & values.after_B.isfinite().all()):
        return TokenAdvantages(advantages_T=nan_T, returns_T=nan_T)
    places_B, mask_T = row.places_B.cpu(), torch.ones_like(row.targets_T)
    reward_T = reward_T.to(values.before_T.device)
    if penalty:
        assert constants.ref_T is not None, "row constants have ref_T wherever the KL term is in the reward"
        reward_T = reward_T - reward_penalty(penalty, row.rollout_logprobs_T, constants.ref_T, mask_T)
    advantages_T, returns_T = gae(
        reward_T,
        values.before_T,
        mask_T,
        row.sequence_ids_T,
        gamma=spec.gamma,
        lam=spec.lam,
        bootstrap=values.after_B * cut_B[places_B].to(values.after_B),
    )
    return TokenAdvantages(advantages_T=advantages_T, returns_T=returns_T)


def _final_rewards(row: Row, rewards_B: torch.Tensor) -> torch.Tensor:
    """Return the reward of each completion at the last token of each of its segments, 0 elsewhere, [T]."""
    return final_rewards(rewards_B[row.places_B.cpu()].to(row.places_B.device), row.sequence_ids_T)


def _whitened(
    spec: Gae, advantages: Sequence[TokenAdvantages], rows: Sequence[Row], ranks: Ranks
) -> list[TokenAdvantages]:
    """Whiten by the statistics of all tokens of the batch on all ranks, those over age included."""
    parts = [moments(each.advantages_T, row.mask_T) for each, row in zip(advantages, rows, strict=True)]
    batch = ranks.sum(torch.stack(parts).sum(dim=0))
    return [
        replace(each, advantages_T=whiten(each.advantages_T, batch, epsilon=spec.epsilon))
        for each in advantages
    ]
