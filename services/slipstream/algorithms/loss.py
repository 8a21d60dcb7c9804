"""The policy loss of one packed microbatch: ratio, objective, age mask, weights, sum.

Suffixes: _T packed tokens, _B sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms.aggregation import Counts, token_weights
from slipstream.algorithms.checks import count_sequences, require_floating, require_mask, require_shape
from slipstream.algorithms.metrics import finalize, kl_sums, loss_sums
from slipstream.algorithms.objectives import surrogate
from slipstream.algorithms.ratios import keep
from slipstream.algorithms.resolve import resolve_loss
from slipstream.algorithms.spec import LossSpec, Objective, Pg
from slipstream.algorithms.staleness import over_age_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss, with gradient, and its metrics.

    With the same counts, losses and their gradients add up over microbatches and ranks.
    """

    loss: Tensor
    """Scalar, to be minimised."""
    sums: dict[str, Tensor]
    """Additive scalars without gradient, on the loss's device; see `merge` and `finalize`."""

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of this microbatch alone, as `finalize` names them."""
        return finalize(self.sums)


def policy_loss(
    spec: Mapping[str, Any] | LossSpec,
    *,
    logprobs: Tensor,
    rollout_logprobs: Tensor | None = None,
    old_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    advantages: Tensor,
    mask: Tensor,
    sequence_ids: Tensor,
    staleness: Tensor | None = None,
    group_ids: Tensor | None = None,
    counts: Counts | None = None,
) -> PolicyLoss:
    """Compute L = - sum_t w_t J_t, so that dL/dl_t = - w_t g_t.

    spec: a LossSpec, {"preset": name} or {"objective": ..., "aggregation": ..., "max_staleness": ...}.
    logprobs: [T] nats under the current policy, with gradient.
    rollout_logprobs, old_logprobs, ref_logprobs: [T] nats, constants. The objective's anchor is required:
        rollout_logprobs for "rollout", old_logprobs for "batch". The others only feed metrics.
    advantages: [B], or [T] where they differ within a sequence.
    mask: [T], 1 where the token trains; elsewhere anything, NaN included, is ignored.
    sequence_ids: [T], 0, ..., B - 1 in order. staleness: [T] policy versions, for max_staleness.
    group_ids: [B] prompt of each sequence, for prompt_mean. counts: of the whole optimizer batch.
    A batch without tokens gives a loss of 0 with zero gradient.
    Raises ValueError for mismatched shapes, unordered ids, or an input that the spec needs and lacks.
    """
    loss = resolve_loss(spec)
    constants = {"rollout": rollout_logprobs, "old": old_logprobs, "ref": ref_logprobs}
    _check(logprobs, constants, mask, sequence_ids)
    mask_T = mask.bool()
    trained_T = mask_T & ~_over_age(loss, staleness, mask_T)

    weight_T = token_weights(loss.aggregation, mask_T, sequence_ids, group_ids=group_ids, counts=counts)
    logprob_T = keep(_wide(logprobs), trained_T)
    anchor_T = keep(
        _anchor(loss.objective, logprobs, rollout_logprobs, old_logprobs).to(logprob_T), trained_T
    )
    advantage_T = keep(_per_token(advantages, sequence_ids).to(logprob_T), trained_T)
    objective = surrogate(loss.objective, logprob_T, anchor_T, advantage_T)

    sums = loss_sums(objective, advantage_T, mask_T, trained_T)
    for name in ("rollout", "ref"):
        other = constants[name]
        if other is not None:
            sums |= kl_sums(name, logprob_T, keep(other.to(logprob_T), trained_T), trained_T)
    return PolicyLoss(loss=-(weight_T.to(logprob_T) * objective.value_T).sum(), sums=sums)


def _check(
    logprobs: Tensor, constants: Mapping[str, Tensor | None], mask: Tensor, sequence_ids: Tensor
) -> None:
    if logprobs.ndim != 1:
        raise ValueError(f"logprobs: got shape {list(logprobs.shape)}, needs packed tokens [T]")
    require_floating("logprobs", logprobs)
    for name, constant in constants.items():
        if constant is not None:
            require_shape(f"{name}_logprobs", constant, tuple(logprobs.shape), "logprobs")
            require_floating(f"{name}_logprobs", constant)
    require_shape("mask", mask, tuple(logprobs.shape), "logprobs")
    require_mask("mask", mask)
    require_shape("sequence_ids", sequence_ids, tuple(logprobs.shape), "logprobs")


def _anchor(objective: Objective, logprobs: Tensor, rollout: Tensor | None, old: Tensor | None) -> Tensor:
    if isinstance(objective, Pg):
        return logprobs.detach() if rollout is None else rollout
    name, anchor = ("rollout", rollout) if objective.anchor == "rollout" else ("old", old)
    if anchor is None:
        raise ValueError(
            f"{name}_logprobs: got None, {objective.kind} with anchor {objective.anchor} needs them"
        )
    return anchor


def _per_token(advantages: Tensor, sequence_ids: Tensor) -> Tensor:
    require_floating("advantages", advantages)
    tokens, sequences = sequence_ids.shape[0], count_sequences(sequence_ids)
    if tuple(advantages.shape) not in ((sequences,), (tokens,)):
        raise ValueError(
            f"advantages: got shape {list(advantages.shape)}, needs [{sequences}], one for each sequence, "
            f"or [{tokens}], one for each token"
        )
    return advantages if advantages.shape[0] == tokens else advantages[sequence_ids]


def _over_age(loss: LossSpec, staleness: Tensor | None, mask_T: Tensor) -> Tensor:
    if staleness is not None:
        require_shape("staleness", staleness, tuple(mask_T.shape), "mask")
    if loss.max_staleness is None:
        return torch.zeros_like(mask_T)
    if staleness is None:
        raise ValueError(
            f"staleness: got None, max_staleness {loss.max_staleness} needs the age of each token"
        )
    return over_age_mask(staleness, loss.max_staleness)


def _wide(logprobs: Tensor) -> Tensor:
    return logprobs if logprobs.dtype == torch.float64 else logprobs.float()
