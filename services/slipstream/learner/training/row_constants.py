"""Values of a batch that its losses read, computed once before the first update.

They are old and reference logprobs, entropies, router logprobs and the critic's values. Each needs a forward
pass without gradient, which is made only if the algorithm reads the result.

Shape suffixes: T sampled tokens of a row.
"""

import math
from collections.abc import Sequence
from typing import Final

import torch

from slipstream.algorithms import m2po_limit, token_baseline
from slipstream.algorithms.spec import LossSpec, M2po
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy.logprobs import Selected
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.minibatch import RowConstants, WeightedMinibatch, per_token_advantages
from slipstream.learner.training.models import Models

TIE: Final = 1e-5
"""Nats. Tokens behind the same prompt have equal entropies, up to a rounding that depends on their row."""


def precompute_row_constants(
    loss: LossSpec, rows: Sequence[Row], models: Models, *, energies: bool = False
) -> list[RowConstants]:
    """Return the constants of each row, by the models as they are now.

    energies: whether the advantage optimal_token needs them. All ranks must call.
    """
    critic = models.critic
    reads_policy = energies or _needs_policy(loss) or (critic is not None and critic.reads_policy)
    now = [models.forward.without_gradient(models.policy, row) for row in rows] if reads_policy else None
    sharper = [models.forward.sharper(models.policy, row).logprobs_T for row in rows] if energies else None
    ref = _reference_logprobs(loss, rows, models)
    selected = (
        None if loss.top_entropy is None or now is None else _top_entropy(loss, rows, now, models.ranks)
    )
    return [
        RowConstants(
            old_T=now[i].logprobs_T if now is not None and (energies or _keeps_old(loss)) else None,
            ref_T=None if ref is None else ref[i],
            selected_T=None if selected is None else selected[i],
            routed=None if now is None else now[i].routed,
            energies_T=None
            if sharper is None or now is None
            else token_baseline.token_energies(now[i].logprobs_T, sharper[i]),
            values=None
            if critic is None
            else critic.values_without_gradient(row, None if now is None else now[i].hidden_NH),
        )
        for i, row in enumerate(rows)
    ]


def drift_bound(
    loss: LossSpec, minibatch: WeightedMinibatch, models: Models, *, updated: bool
) -> float | None:
    """Return the bound of m2po over a whole minibatch, on all ranks; None without m2po.

    updated: whether the policy has changed since the row constants were computed. The scope `harmful` then
    needs its logprobs again.
    """
    spec = next((c for c in loss.corrections if isinstance(c, M2po)), None)
    rows = minibatch.rows
    if spec is None or not rows:
        return None
    again = updated and spec.scope == "harmful"
    logprobs = [
        models.forward.without_gradient(models.policy, row).logprobs_T if again else constants.old_T
        for row, constants in zip(rows, minibatch.constants, strict=True)
    ]
    advantages = [
        per_token_advantages(targets.advantages, row)
        for targets, row in zip(minibatch.targets, rows, strict=True)
    ]
    mask_T = torch.cat([row.mask_T for row in rows]).bool()

    def gathered(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The values of all trained tokens of the minibatch."""
        tensor_T = torch.cat([tensor for tensor in tensors if tensor is not None])
        return models.ranks.gather(tensor_T[mask_T])

    logprobs_T = gathered(logprobs)
    return m2po_limit(
        loss,
        logprobs=logprobs_T,
        rollout_logprobs=gathered([row.rollout_logprobs_T for row in rows]),
        advantages=gathered(advantages),
        mask=torch.ones_like(logprobs_T),
    )


def least_of_largest(values: Sequence[torch.Tensor], *, share: float, ranks: Ranks) -> float:
    """Return the smallest of the top `share` of the values of all rows and ranks; inf without values."""
    own = torch.cat(list(values)) if values else torch.zeros(0)
    values_N = ranks.gather(own)
    if not values_N.numel():
        return math.inf
    count = max(1, round(share * values_N.numel()))
    return float(values_N.topk(count).values[-1])


def _reference_logprobs(loss: LossSpec, rows: Sequence[Row], models: Models) -> list[torch.Tensor] | None:
    """Return logprobs [T] of each row under the reference; None where nothing reads them."""
    in_reward = models.critic is not None and loss.kl is not None and loss.kl.placement == "reward"
    if models.reference is None or not (loss.needs_ref_logprobs or in_reward):
        return None
    policy = models.reference.policy
    return [models.forward.without_gradient(policy, row).logprobs_T for row in rows]


def _top_entropy(
    loss: LossSpec, rows: Sequence[Row], now: Sequence[Selected], ranks: Ranks
) -> list[torch.Tensor]:
    """Return the tokens [T], bool, of each row that top_entropy lets train."""
    assert loss.top_entropy is not None
    entropies = [selected.entropy_T[row.mask_T.bool()] for selected, row in zip(now, rows, strict=True)]
    bound = least_of_largest(entropies, share=loss.top_entropy.share, ranks=ranks)
    return [selected.entropy_T >= bound - TIE for selected in now]


def _needs_policy(loss: LossSpec) -> bool:
    return _keeps_old(loss) or loss.top_entropy is not None


def _keeps_old(loss: LossSpec) -> bool:
    return (
        loss.needs_old_logprobs or loss.needs_covariance or any(isinstance(c, M2po) for c in loss.corrections)
    )
