"""The loss of a microbatch and its slopes, summed over its parts.

tokens ─▶ objective: J, g ─▶ × corrections c ─▶ + regularisers ─▶ × aggregation weight w ─▶ loss, metrics

Sequences meet only in the sum, so a row is computed in parts, which bounds the temporary memory.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.algorithms import (
    aggregation,
    corrections,
    distillation,
    inputs,
    ratios,
    regularizers,
    segments,
)
from slipstream.algorithms.microbatch import Microbatch, parts
from slipstream.algorithms.objectives import Tokens, surrogate
from slipstream.algorithms.spec import LossSpec, M2po, Tis, Vespo
from slipstream.algorithms.tally import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """Loss, slopes and entropy, added over the parts."""

    value: Tensor
    """The loss without its entropy bonus."""
    slope_T: Tensor
    """Derivative of the loss by each logprob."""
    slope_TK: Tensor | None
    """Derivative of the loss by the logprobs of the teacher's likeliest tokens; None without a divergence."""
    entropy: Tensor
    """Sum of the entropies of the tokens that trained."""
    trained_T: Tensor
    gates_T: Tensor
    """See PolicyLoss."""
    sides_T: Tensor
    """See PolicyLoss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The loss of a part, and what it makes of each token."""

    value: Tensor
    slope_T: Tensor
    gates_T: Tensor
    sides_T: Tensor


def sum_parts(
    loss: LossSpec, microbatch: Microbatch, counts: aggregation.Counts, limit: float | None, tally: Tally
) -> Summed:
    """Sum the loss of a checked microbatch over its parts, and add its metrics to the tally.

    counts: of the whole optimizer batch. limit: of m2po; None: that of this microbatch.
    """
    limit = _whole_limit(loss, microbatch) if limit is None else limit
    logprobs_T = microbatch.logprobs_T
    slope_T = torch.zeros_like(logprobs_T, dtype=torch.promote_types(logprobs_T.dtype, torch.float32))
    top = None if microbatch.taught is None else microbatch.taught.top
    slope_TK = None if top is None else slope_T.new_zeros(top.logprobs_TK.shape)
    gates_T, sides_T = torch.zeros_like(slope_T), torch.zeros_like(logprobs_T, dtype=torch.int8)
    trained_T = torch.zeros_like(logprobs_T, dtype=torch.bool)
    value = entropy = logprobs_T.new_zeros((), dtype=torch.float64)
    weight_B = aggregation.sequence_weights(loss.aggregation, microbatch.layout, counts, dtype=slope_T.dtype)
    for part in parts(microbatch):
        tokens = inputs.read_tokens(loss, part.microbatch)
        weight_T = aggregation.spread(weight_B[part.sequences], tokens.layout)
        summed = _value_and_slope(loss, tokens, weight_T, limit, tally)
        value, slope_T[part.tokens] = value + summed.value, summed.slope_T
        gates_T[part.tokens], sides_T[part.tokens] = summed.gates_T, summed.sides_T
        trained_T[part.tokens] = tokens.trained_T
        if slope_TK is not None:
            more, of_sampled_T, slope_TK[part.tokens] = _divergence(loss, tokens, weight_T)
            value, slope_T[part.tokens] = value + more, slope_T[part.tokens] + of_sampled_T
        if tokens.entropy_T is not None:
            entropy = entropy + tokens.keep(tokens.entropy_T).sum(dtype=torch.float64)
    return Summed(
        value=value,
        slope_T=slope_T,
        slope_TK=slope_TK,
        entropy=entropy,
        trained_T=trained_T,
        gates_T=gates_T,
        sides_T=sides_T,
    )


def m2po_of(loss: LossSpec) -> M2po | None:
    """Return the correction m2po of a loss; None without it."""
    return next((correction for correction in loss.corrections if isinstance(correction, M2po)), None)


def _whole_limit(loss: LossSpec, microbatch: Microbatch) -> float | None:
    """Return the bound of m2po over all parts; None without m2po."""
    correction = m2po_of(loss)
    if correction is None:
        return None
    sizes = []
    for part in parts(microbatch):
        tokens = inputs.read_tokens(loss, part.microbatch)
        z_T = tokens.drift_T if correction.scope == "harmful" else tokens.log_rho_T
        assert z_T is not None, "check sees to it"
        sizes.append(corrections.m2po_sizes(correction, z_T, tokens.advantages_T, tokens.mask_T))
    return corrections.m2po_bound(correction, torch.cat(sizes))


def _value_and_slope(
    loss: LossSpec, tokens: Tokens, weight_T: Tensor, limit: float | None, tally: Tally
) -> _Part:
    """Return the loss of a part and its derivative by each logprob; add the metrics to the tally."""
    objective = surrogate(loss.objective, _with_weights_in_ratio(loss, tokens))
    correction_T = _corrections(loss, tokens, limit)
    tally.add(
        objective,
        advantages_T=tokens.advantages_T,
        mask_T=tokens.mask_T,
        trained_T=tokens.trained_T,
        everything_counts=tokens.layout.is_full,
        everything_trains=tokens.layout.is_full and tokens.trains_whole_mask,
        staleness_T=tokens.staleness_T,
        correction_T=correction_T,
        dropped_sequences=_dropped_sequences(tokens, correction_T),
        extra=_extra_values(tokens),
    )
    if not tokens.trains_whole_mask:
        weight_T = weight_T * tokens.trained_T
    policy_T = weight_T if correction_T is None else weight_T * correction_T
    value_T = -policy_T * objective.value_T
    g_T = objective.slope_T
    if g_T is None:
        g_T = objective.weight_T * tokens.advantages_T
    slope_T = -policy_T * g_T
    term = regularizers.add_terms(_terms(loss, tokens))
    if term is not None:
        value_T, slope_T = value_T + weight_T * term.value_T, slope_T + weight_T * term.slope_T
    # 0 × inf is NaN: an infinite logprob shows in the loss, even where a bound hides it
    value_T = value_T + 0 * tokens.logprobs_T
    gates_T = objective.weight_T if correction_T is None else objective.weight_T * correction_T
    sides_T = objective.clipped_high_T.to(torch.int8) - objective.clipped_low_T.to(torch.int8)
    return _Part(
        value=tokens.keep(value_T).sum(dtype=torch.float64),
        slope_T=tokens.keep(slope_T),
        gates_T=tokens.keep(gates_T),
        sides_T=sides_T * tokens.trained_T,
    )


def _divergence(loss: LossSpec, tokens: Tokens, weight_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The divergence to the teacher as a number, with its derivatives by the sampled and the likeliest
    tokens' logprobs."""
    assert loss.distillation is not None, "check sees to it"
    assert tokens.taught is not None, "check sees to it"
    divergence = distillation.divergence_term(loss.distillation, tokens.logprobs_T, tokens.taught)
    value = tokens.keep(weight_T * divergence.term.value_T).sum(dtype=torch.float64)
    slope_TK = tokens.keep(weight_T[:, None] * divergence.slope_TK)
    return value, tokens.keep(weight_T * divergence.term.slope_T), slope_TK


def _with_weights_in_ratio(loss: LossSpec, tokens: Tokens) -> Tokens:
    """Return the objective's tokens. For vespo the weights of a tis correction are part of the ratio."""
    spec = _inside_ratio(loss)
    if spec is None:
        return tokens
    c_T = corrections.correction_weight(spec, tokens)
    parts_T = 1 if spec.level == "token" else tokens.of_token(tokens.lengths_B).clamp(min=1)
    return replace(tokens, log_ratio_T=tokens.log_ratio_T + c_T.log() / parts_T)


def _inside_ratio(loss: LossSpec) -> Tis | None:
    """The correction that vespo takes into W, log W += sum of log c; None for every other objective."""
    if not isinstance(loss.objective, Vespo):
        return None
    return next((correction for correction in loss.corrections if isinstance(correction, Tis)), None)


def _corrections(loss: LossSpec, tokens: Tokens, limit: float | None) -> Tensor | None:
    """The product of all corrections and of the selected tokens, [T]; None where there is none."""
    correction_T = None if tokens.selected_T is None else tokens.selected_T.to(tokens.logprobs_T)
    for spec in loss.corrections:
        if spec is _inside_ratio(loss):
            continue
        c_T = corrections.correction_weight(spec, tokens, m2po_limit=limit)
        correction_T = c_T if correction_T is None else correction_T * c_T
    return correction_T


def _terms(loss: LossSpec, tokens: Tokens) -> list[regularizers.Term]:
    terms = []
    if loss.kl is not None and loss.kl.placement == "loss":
        assert tokens.log_ratio_ref_T is not None, "check sees to it"
        terms.append(regularizers.kl_term(loss.kl, tokens.log_ratio_ref_T, tokens.log_ratio_T))
    if loss.drift_penalty is not None:
        assert tokens.drift_T is not None, "check sees to it"
        terms.append(regularizers.drift_term(loss.drift_penalty, tokens.drift_T, tokens))
    if loss.kl_cov is not None:
        assert tokens.held_T is not None, "check sees to it"
        terms.append(regularizers.covariance_term(loss.kl_cov, tokens.log_ratio_T, tokens.held_T))
    return terms


def _extra_values(tokens: Tokens) -> dict[str, Tensor]:
    drift_T, ref_T, teacher_T = tokens.drift_T, tokens.log_ratio_ref_T, tokens.log_ratio_teacher_T
    values = {
        "kl_rollout": None if drift_T is None else ratios.k3(ratios.bounded(drift_T)),
        "kl_ref": None if ref_T is None else ratios.k3(-ratios.bounded(ref_T)),
        "kl_teacher": None if teacher_T is None else ratios.k3(ratios.bounded(teacher_T)),
        "entropy": tokens.entropy_T,
        "router_shift": tokens.router_shift_T,
    }
    return {name: value_T for name, value_T in values.items() if value_T is not None}


def _dropped_sequences(tokens: Tokens, correction_T: Tensor | None) -> Tensor | None:
    """Count the sequences whose trained tokens the corrections all drop; None without corrections."""
    if correction_T is None:
        return None
    sequences, trained_B = tokens.layout.sequences, tokens.lengths_B
    kept_T = ((correction_T != 0) & tokens.trained_T).to(trained_B)
    if not tokens.trains_whole_mask:
        trained_B = segments.segment_sum(tokens.trained_T.to(trained_B), tokens.sequence_ids_T, sequences)
    kept_B = segments.segment_sum(kept_T, tokens.sequence_ids_T, sequences)
    return ((trained_B > 0) & (kept_B == 0)).sum().double()
