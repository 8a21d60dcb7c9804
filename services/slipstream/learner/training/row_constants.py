"""What a loss needs to know before the first gradient: old and reference logprobs, statistics of a batch.

Each is a forward pass without gradient, made only where the algorithm asks for it.

Shape suffixes: T sampled tokens of a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from slipstream.algorithms import m2po_limit
from slipstream.algorithms.spec import LossSpec, M2po
from slipstream.algorithms.token_baseline import token_energies
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.routing import Routed
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.critic import Critic, Values
from slipstream.learner.training.forward import Forward

TIE: Final = 1e-5
"""Nats: tokens behind the same prompt have the same entropy, but for a rounding that depends on their row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConstants:
    """What is known of one row before it is trained on; None where the loss has no use for it."""

    old_T: torch.Tensor | None = None
    """Logprobs of the policy at the start of the batch."""
    ref_T: torch.Tensor | None = None
    """Logprobs of the reference."""
    selected_T: torch.Tensor | None = None
    """The tokens that top_entropy and clip_cov let train."""
    held_T: torch.Tensor | None = None
    """The tokens that kl_cov holds near the anchor."""
    routed: Routed | None = None
    """The experts that were active at the start of the batch, and their router's logprobs then, for rspo."""
    energies_T: torch.Tensor | None = None
    """1 - 2 p + sum of p^2 at the start of the batch, for the advantage optimal_token."""
    values: Values | None = None
    """What the critic says at the start of the batch."""
    returns_T: torch.Tensor | None = None
    """What the critic learns."""


def precompute_row_constants(
    loss: LossSpec,
    rows: Sequence[Row],
    policy: Policy,
    reference: Policy | None,
    forward: Forward,
    ranks: Ranks,
    *,
    critic: Critic | None = None,
    energies: bool = False,
) -> list[RowConstants]:
    """Look at every row of a batch before its first update; `energies`: for the advantage optimal_token."""
    read = energies or _needs_policy(loss) or (critic is not None and critic.reads_policy)
    now = [forward.without_gradient(policy, row) for row in rows] if read else None
    sharper = [forward.sharper(policy, row).logprobs_T for row in rows] if energies else None
    in_reward = critic is not None and loss.kl is not None and loss.kl.placement == "reward"
    needed = reference if loss.needs_ref_logprobs or in_reward else None
    ref = None if needed is None else [forward.without_gradient(needed, row) for row in rows]
    chosen = None
    if loss.top_entropy is not None and now is not None:
        entropies = [n.entropy_T[row.mask_T.bool()] for n, row in zip(now, rows, strict=True)]
        bound = least_of_largest(entropies, share=loss.top_entropy.share, ranks=ranks)
        chosen = [found.entropy_T >= bound - TIE for found in now]
    return [
        RowConstants(
            old_T=now[i].logprobs_T if now is not None and (energies or _keeps_old(loss)) else None,
            ref_T=None if ref is None else ref[i].logprobs_T,
            selected_T=None if chosen is None else chosen[i],
            routed=None if now is None else now[i].routed,
            energies_T=None
            if sharper is None or now is None
            else token_energies(now[i].logprobs_T, sharper[i]),
            values=None if critic is None else critic.look(row, None if now is None else now[i].hidden_NH),
        )
        for i, row in enumerate(rows)
    ]


def drift_bound(
    loss: LossSpec,
    rows: Sequence[Row],
    advantages: Sequence[torch.Tensor],
    known: Sequence[RowConstants],
    policy: Policy,
    forward: Forward,
    ranks: Ranks,
    *,
    updated: bool,
) -> float | None:
    """The bound of m2po over a whole minibatch; None without it. `updated`: the policy has moved since
    `precompute_row_constants`, so that the scope `harmful` needs its logprobs again."""
    spec = next((c for c in loss.corrections if isinstance(c, M2po)), None)
    if spec is None or not rows:
        return None
    again = updated and spec.scope == "harmful"
    parts = [
        forward.without_gradient(policy, row).logprobs_T if again else found.old_T
        for row, found in zip(rows, known, strict=True)
    ]
    logprobs_T = torch.cat([part for part in parts if part is not None])
    mask_T = torch.cat([row.mask_T for row in rows]).bool()

    def gathered(tensor_T: torch.Tensor) -> torch.Tensor:
        return ranks.gather(tensor_T[mask_T])

    logprobs_T = gathered(logprobs_T)
    return m2po_limit(
        loss,
        logprobs=logprobs_T,
        rollout_logprobs=gathered(torch.cat([row.rollout_logprobs_T for row in rows])),
        advantages=gathered(
            torch.cat([per_token_advantages(a, r) for a, r in zip(advantages, rows, strict=True)])
        ),
        mask=torch.ones_like(logprobs_T),
    )


def per_token_advantages(advantages: torch.Tensor, row: Row) -> torch.Tensor:
    """Advantages [T], of one for each sequence [B] or for each token [T]."""
    by_token = advantages.shape == row.sequence_ids_T.shape
    return advantages if by_token else advantages[row.sequence_ids_T]


def least_of_largest(values: Sequence[torch.Tensor], *, share: float, ranks: Ranks) -> float:
    """The least of the given share of the largest values over all rows and ranks; inf without any."""
    own = torch.cat(list(values)) if values else torch.zeros(0)
    whole = ranks.gather(own)
    if not whole.numel():
        return math.inf
    count = max(1, round(share * whole.numel()))
    return float(whole.topk(count).values[-1])


def _needs_policy(loss: LossSpec) -> bool:
    return _keeps_old(loss) or loss.top_entropy is not None


def _keeps_old(loss: LossSpec) -> bool:
    return (
        loss.needs_old_logprobs or loss.needs_covariance or any(isinstance(c, M2po) for c in loss.corrections)
    )
