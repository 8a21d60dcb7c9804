"""The policy loss of one packed microbatch: objective, corrections, regularisers, weights, sum.

tokens ─▶ objective: J, g ─▶ × corrections c ─▶ + regularisers ─▶ × aggregation weight w ─▶ loss, metrics

Every term of the loss has a slope by the logprob of its own token that is known in closed form, so the loss
is built as its value plus a term that is zero and has that slope: -w c g, and what the regularisers add.
Nothing but the logprobs and the entropy carries a gradient.

Suffixes: _T packed tokens, _B sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms.aggregation import Counts, count, token_weights
from slipstream.algorithms.corrections import correction_weight, m2po_bound
from slipstream.algorithms.inputs import Inputs, read_inputs
from slipstream.algorithms.metrics import finalize, finalize_by_staleness, loss_sums
from slipstream.algorithms.objectives import TopK, surrogate
from slipstream.algorithms.ratios import bounded, k3, keep
from slipstream.algorithms.regularizers import Term, add_terms, drift_term, kl_term
from slipstream.algorithms.resolve import resolve_loss
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.spec import LossSpec, M2po


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss, with gradient, and its metrics.

    With the same counts, losses and their gradients add up over microbatches and ranks.
    """

    loss: Tensor
    """Scalar, to be minimised."""
    sums: dict[str, Tensor]
    """Additive sums without gradient, on the loss's device; see `merge` and `finalize`."""

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of this microbatch alone, as `finalize` names them."""
        return finalize(self.sums)

    @property
    def metrics_by_staleness(self) -> dict[str, dict[str, float]]:
        """The same by staleness bucket."""
        return finalize_by_staleness(self.sums)


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
    entropy: Tensor | None = None,
    entropy_coefficient: float | None = None,
    selected: Tensor | None = None,
    router_shift: Tensor | None = None,
    top_k: TopK | None = None,
    m2po_limit: float | None = None,
) -> PolicyLoss:
    """Compute L = - sum_t w_t c_t J_t + regularisers, so that dL/dl_t = - w_t c_t g_t + their slopes.

    spec: a LossSpec, or a mapping: {"preset": name} or {"objective": ..., "aggregation": ...} with any of
        correction, kl, drift_penalty, entropy, top_entropy, token_weight, max_staleness; see `resolve_loss`.
    logprobs: [T] nats under the current policy, with gradient.
    rollout_logprobs, old_logprobs, ref_logprobs: [T] nats, constants. The objective's anchor is required:
        rollout_logprobs for "rollout", old_logprobs for "batch"; corrections need both, KL ref_logprobs.
    advantages: [B], or [T] where they differ within a sequence (not for gspo, gmpo, rspo, vespo).
    mask: [T], 1 where the token trains; elsewhere anything, NaN included, is ignored.
    sequence_ids: [T], 0, ..., B - 1 in order. staleness: [T] policy versions, for max_staleness and metrics.
    group_ids: [B] prompt of each sequence, for prompt_mean. counts: of the whole optimizer batch.
    entropy: [T] nats, with gradient, for the entropy bonus; entropy_coefficient replaces the spec's.
    selected: [T] bool, the tokens that top_entropy lets train, chosen over the whole batch.
    router_shift: [T] in (0, 1], for rspo. top_k: for dppo's topk divergences.
    m2po_limit: bound over the whole batch, see `m2po_limit`; without it, over these tokens.
    A batch without tokens gives a loss of 0 with zero gradient.
    Raises ValueError for mismatched shapes, unordered ids, or an input that the spec needs and lacks.
    """
    loss = resolve_loss(spec)
    with torch.no_grad():
        inputs = read_inputs(
            loss,
            logprobs=logprobs,
            rollout_logprobs=rollout_logprobs,
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            advantages=advantages,
            mask=mask,
            sequence_ids=sequence_ids,
            staleness=staleness,
            entropy=entropy,
            selected=selected,
            router_shift=router_shift,
            top_k=top_k,
        )
        whole = counts or count(mask, sequence_ids, group_ids)
        weight_T = token_weights(
            loss.aggregation,
            mask,
            sequence_ids,
            group_ids=group_ids,
            counts=whole,
            dtype=inputs.tokens.logprobs_T.dtype,
        )
        value, slope_T, sums = _value_and_slope(loss, inputs, weight_T, m2po_limit)
    total = _with_slope(value, slope_T, logprobs, inputs.trained_T)
    if loss.entropy is not None and entropy is not None:
        coefficient = loss.entropy.coefficient if entropy_coefficient is None else entropy_coefficient
        kept_T = torch.where(inputs.trained_T, entropy, torch.zeros_like(entropy))
        total = total - coefficient * kept_T.sum().to(total.dtype) / max(whole.tokens, 1)
    return PolicyLoss(loss=total, sums=sums)


def m2po_limit(
    spec: Mapping[str, Any] | LossSpec,
    *,
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
) -> float:
    """Return the bound on |log ratio| that m2po finds over a whole optimizer batch; inf without m2po.

    All [T]. logprobs: the current policy's, or for the scope "all" the old logprobs.
    """
    correction = next((c for c in resolve_loss(spec).corrections if isinstance(c, M2po)), None)
    if correction is None:
        return torch.inf
    mask_T = mask.bool()
    z_T = torch.where(mask_T, logprobs.detach() - rollout_logprobs, 0.0)
    return m2po_bound(correction, z_T, advantages, mask_T)


def _value_and_slope(
    loss: LossSpec, inputs: Inputs, weight_T: Tensor, limit: float | None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The loss as a number, its derivative by each logprob, and the sums of the metrics."""
    objective = surrogate(loss.objective, inputs.tokens)
    correction_T = _corrections(loss, inputs, limit)
    weight_T = weight_T * inputs.trained_T
    policy_T = weight_T if correction_T is None else weight_T * correction_T
    value = -keep(policy_T * objective.value_T, inputs.trained_T).sum(dtype=torch.float64)
    slope_T = -keep(policy_T * objective.weight_T * inputs.tokens.advantages_T, inputs.trained_T)
    term = add_terms(_terms(loss, inputs))
    if term is not None:
        value = value + keep(weight_T * term.value_T, inputs.trained_T).sum(dtype=torch.float64)
        slope_T = slope_T + keep(weight_T * term.slope_T, inputs.trained_T)
    sums = loss_sums(
        objective,
        advantages_T=inputs.tokens.advantages_T,
        mask_T=inputs.tokens.mask_T,
        trained_T=inputs.trained_T,
        staleness_T=inputs.staleness_T,
        correction_T=correction_T,
        extra=_extra_values(inputs),
    )
    sums["dropped_sequences"] = _dropped_sequences(inputs, correction_T)
    return value, slope_T, sums


def _with_slope(value: Tensor, slope_T: Tensor, logprobs: Tensor, trained_T: Tensor) -> Tensor:
    """The value, as a function of the logprobs with the given slope; masked ones, NaN included, have none."""
    l_T = torch.where(trained_T, logprobs, torch.zeros_like(logprobs)).to(slope_T.dtype)
    line = (slope_T * l_T).sum()
    return value.to(slope_T.dtype) + (line - line.detach())


def _corrections(loss: LossSpec, inputs: Inputs, limit: float | None) -> Tensor | None:
    """The product of all corrections and of the selected tokens, [T]; None where there is none."""
    correction_T = None if inputs.selected_T is None else inputs.selected_T.to(inputs.tokens.logprobs_T)
    for spec in loss.corrections:
        assert inputs.drift_T is not None, "read_inputs checks it"
        rho_T = inputs.drift_T if inputs.log_rho_T is None else inputs.log_rho_T
        c_T = correction_weight(
            spec, inputs.tokens, log_rho_T=rho_T, drift_T=inputs.drift_T, m2po_limit=limit
        )
        correction_T = c_T if correction_T is None else correction_T * c_T
    return correction_T


def _terms(loss: LossSpec, inputs: Inputs) -> list[Term]:
    terms = []
    if loss.kl is not None and loss.kl.placement == "loss":
        assert inputs.log_ratio_ref_T is not None, "read_inputs checks it"
        terms.append(kl_term(loss.kl, inputs.log_ratio_ref_T, inputs.tokens.log_ratio_T))
    if loss.drift_penalty is not None:
        assert inputs.drift_T is not None, "read_inputs checks it"
        terms.append(drift_term(loss.drift_penalty, inputs.drift_T))
    return terms


def _extra_values(inputs: Inputs) -> dict[str, Tensor]:
    found = {
        "kl_rollout": None if inputs.drift_T is None else k3(bounded(inputs.drift_T)),
        "kl_ref": None if inputs.log_ratio_ref_T is None else k3(-bounded(inputs.log_ratio_ref_T)),
        "entropy": inputs.entropy_T,
    }
    return {name: value_T for name, value_T in found.items() if value_T is not None}


def _dropped_sequences(inputs: Inputs, correction_T: Tensor | None) -> Tensor:
    """How many sequences with trained tokens have none left after the corrections."""
    tokens = inputs.tokens
    if correction_T is None:
        return torch.zeros((), dtype=torch.float64, device=tokens.mask_T.device)
    kept_T = ((correction_T != 0) & inputs.trained_T).to(tokens.lengths_B)
    sequences = tokens.lengths_B.shape[0]
    trained_B = segment_sum(inputs.trained_T.to(tokens.lengths_B), tokens.sequence_ids_T, sequences)
    kept_B = segment_sum(kept_T, tokens.sequence_ids_T, sequences)
    return ((trained_B > 0) & (kept_B == 0)).sum().double()
