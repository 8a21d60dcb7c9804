"""Which token earned how much of its completion's reward: advantages and returns by a critic's values.

Shape suffixes: T sampled tokens of a row, B sequences of a row or completions of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from slipstream.algorithms import StepRewards, final_rewards, gae, moments, reward_penalty, whiten
from slipstream.algorithms.spec import Gae, Kl
from slipstream.learner.batches.rows import Row
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.row_constants import RowConstants
from slipstream.learner.training.step_rewards import token_rewards_of_row
from slipstream.records import FinishReason, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """What the tokens of one row are trained with, in units of reward."""

    advantages_T: torch.Tensor
    returns_T: torch.Tensor
    """What the critic learns."""


def critic_advantages(
    spec: Gae,
    kl: Kl | None,
    groups: Sequence[Group],
    rewards_B: torch.Tensor,
    parts: Sequence[tuple[Sequence[Row], Sequence[RowConstants]]],
    ranks: Ranks,
    *,
    steps: StepRewards | None = None,
) -> list[list[TokenAdvantages]]:
    """The credit of every row of every minibatch, from the values and logprobs before the first update.

    `rewards_B`: of every completion of the batch, by place; with `steps` the rewards are those of its steps,
    each at its last token. A `kl` of placement reward is taken off each
    token's. `parts`: rows of each minibatch, and what is known of them. Where a value is not finite there is
    no credit: it is NaN, and the guard of the step skips what depends on it.
    """
    rows = [row for part, _ in parts for row in part]
    known = [look for _, looks in parts for look in looks]
    penalty = kl.coefficient if kl is not None and kl.placement == "reward" else 0.0
    if steps is None:
        rewards = [_final(row, rewards_B) for row in rows]
    else:
        rewards = [token_rewards_of_row(steps, row) for row in rows]
    credits = iter(_of_rows(spec, groups, rewards, rows, known, penalty, ranks))
    return [[next(credits) for _ in part] for part, _ in parts]


def _of_rows(
    spec: Gae,
    groups: Sequence[Group],
    rewards: Sequence[torch.Tensor],
    rows: Sequence[Row],
    known: Sequence[RowConstants],
    penalty: float,
    ranks: Ranks,
) -> list[TokenAdvantages]:
    """The credit of every row of a batch, from the rewards [T] of its tokens; `penalty` is the coefficient of
    the divergence, 0 for none."""
    ended = (FinishReason.LENGTH,) if spec.truncated == "bootstrap" else ()
    cut_B = torch.tensor([c.finish_reason in ended for g in groups for c in g.completions])
    found = [
        _credit(spec, row, look, reward_T, cut_B, penalty)
        for row, look, reward_T in zip(rows, known, rewards, strict=True)
    ]
    if spec.whiten and found:
        found = _whitened(spec, found, rows, ranks)
    return [
        replace(credit, advantages_T=credit.advantages_T * row.shares_B[row.sequence_ids_T])
        for credit, row in zip(found, rows, strict=True)
    ]


def _credit(
    spec: Gae, row: Row, known: RowConstants, reward_T: torch.Tensor, cut_B: torch.Tensor, penalty: float
) -> TokenAdvantages:
    """Advantages as they come out of the estimator, and returns."""
    values = known.values
    assert values is not None, "looked at with a critic"
    nothing_T = torch.full_like(values.before_T, torch.nan)
    if not bool(values.before_T.isfinite().all() & values.after_B.isfinite().all()):
        return TokenAdvantages(advantages_T=nothing_T, returns_T=nothing_T)
    places_B, mask_T = row.places_B.cpu(), torch.ones_like(row.targets_T)
    reward_T = reward_T.to(values.before_T.device)
    if penalty:
        assert known.ref_T is not None, "a reference is looked at wherever its divergence is in the reward"
        reward_T = reward_T - reward_penalty(penalty, row.rollout_logprobs_T, known.ref_T, mask_T)
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


def _final(row: Row, rewards_B: torch.Tensor) -> torch.Tensor:
    """The reward of each completion at its last token, [T]."""
    return final_rewards(rewards_B[row.places_B.cpu()].to(row.places_B.device), row.sequence_ids_T)


def _whitened(
    spec: Gae, found: Sequence[TokenAdvantages], rows: Sequence[Row], ranks: Ranks
) -> list[TokenAdvantages]:
    """With the statistics of every token of the batch, on all ranks; tokens over age are among them."""
    parts = [moments(c.advantages_T, row.mask_T) for c, row in zip(found, rows, strict=True)]
    batch = ranks.sum(torch.stack(parts).sum(dim=0))
    return [replace(c, advantages_T=whiten(c.advantages_T, batch, epsilon=spec.epsilon)) for c in found]
