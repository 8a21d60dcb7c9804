"""The policy loss of one packed microbatch: objective, corrections, regularisers, weights, sum.

tokens ─▶ objective: J, g ─▶ × corrections c ─▶ + regularisers ─▶ × aggregation weight w ─▶ loss, metrics

Every term of the loss has a slope by the logprob of its own token that is known in closed form: -w c g, and
what the regularisers add. So the loss is a number with its slopes; nothing but the logprobs and the entropy
has a gradient. Sequences meet only in the sum, so they go through in parts, each with its own temporaries.

Suffixes: _T packed tokens, _B sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms.aggregation import Counts, count, token_weights
from slipstream.algorithms.checks import count_sequences, require_floating, require_shape
from slipstream.algorithms.corrections import correction_weight, m2po_bound, m2po_sizes
from slipstream.algorithms.distillation import Taught, divergence_term
from slipstream.algorithms.inputs import Inputs, read_inputs
from slipstream.algorithms.metrics import finalize, finalize_by_staleness
from slipstream.algorithms.objectives import Tokens, TopK, surrogate
from slipstream.algorithms.packed import Packed, Part, check, parts
from slipstream.algorithms.ratios import bounded, k3, keep
from slipstream.algorithms.regularizers import Term, add_terms, covariance_term, drift_term, kl_term
from slipstream.algorithms.resolve import resolve_loss
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.sloped import with_slope
from slipstream.algorithms.spec import LossSpec, M2po, Tis, Vespo
from slipstream.algorithms.tally import Tally


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
    held: Tensor | None = None,
    router_shift: Tensor | None = None,
    top_k: TopK | None = None,
    taught: Taught | None = None,
    m2po_limit: float | None = None,
) -> PolicyLoss:
    """Compute L = - sum_t w_t c_t J_t + regularisers, so that dL/dl_t = - w_t c_t g_t + their slopes.

    c is the product of the corrections, and 0 for a token that is over age or not selected. Where c differs
    between the tokens of a sequence, gspo, gmpo and rspo have their token form: spec/sequence_objective.py.

    spec: a LossSpec, or a mapping: {"preset": name} or {"objective": ..., "aggregation": ...} with any of
        correction, kl, drift_penalty, entropy, top_entropy, clip_cov, kl_cov, distillation, token_weight,
        max_staleness; see `resolve_loss`.
    logprobs: [T] nats under the current policy, with gradient.
    rollout_logprobs, old_logprobs, ref_logprobs: [T] nats, constants. The objective's anchor is required:
        rollout_logprobs for "rollout", old_logprobs for "batch"; corrections need both, KL ref_logprobs.
    advantages: [B], or [T] where they differ within a sequence (not for gspo, gmpo, rspo, vespo).
    mask: [T], 1 where the token trains; elsewhere anything, NaN included, is ignored.
    sequence_ids: [T], 0, ..., B - 1 in order. staleness: [T] policy versions, for max_staleness and metrics.
    group_ids: [B] prompt of each sequence, for prompt_mean. counts: of the whole optimizer batch.
    entropy: [T] nats, with gradient, for the entropy bonus; entropy_coefficient replaces the spec's.
    selected: [T] bool, the tokens that top_entropy and clip_cov let train; held: [T] bool, those that kl_cov
        holds near the anchor. Both are chosen over the whole batch.
    router_shift: [T] in (0, 1], for rspo. top_k: for dppo's topk divergences.
    taught: for distillation, what the teacher says of the tokens; the policy's own logprobs in its `top` have
        a gradient.
    m2po_limit: bound over the whole batch, see `m2po_limit`; without it, over these tokens.
    A batch without tokens gives a loss of 0 with zero gradient.
    Raises ValueError for mismatched shapes, unordered ids, or an input that the spec needs and lacks.
    """
    loss = resolve_loss(spec)
    packed = Packed(
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
        held=held,
        router_shift=router_shift,
        top_k=top_k,
        taught=taught,
    )
    with torch.no_grad():
        check(loss, packed)
        whole = counts or count(mask, sequence_ids, group_ids)
        _check_counts(whole, mask)
        if whole.prompt_tokens_B is not None:
            sequences = (count_sequences(sequence_ids),)
            require_shape("counts.prompt_tokens_B", whole.prompt_tokens_B, sequences, "the sequences")
        found = _sum_of_parts(loss, packed, whole, m2po_limit)
    total = with_slope(found.value, logprobs, found.slope_T)
    if found.slope_TK is not None:
        assert taught is not None, "there is a slope"
        assert taught.top is not None, "there is a slope"
        total = total + with_slope(torch.zeros_like(found.value), taught.top.logprobs_TK, found.slope_TK)
    if loss.entropy is not None and entropy is not None:
        coefficient = loss.entropy.coefficient if entropy_coefficient is None else entropy_coefficient
        factor = -coefficient / max(whole.tokens, 1)
        total = total + with_slope(factor * found.entropy, entropy, (factor * found.trained_T).to(total))
    return PolicyLoss(loss=total, sums=found.sums)


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
    Raises ValueError for shapes that differ.
    """
    require_floating("logprobs", logprobs)
    tensors = {"rollout_logprobs": rollout_logprobs, "advantages": advantages, "mask": mask}
    for name, tensor in tensors.items():
        require_shape(name, tensor, tuple(logprobs.shape), "logprobs")
    correction = _m2po(resolve_loss(spec))
    if correction is None:
        return torch.inf
    mask_T = mask.bool()
    z_T = torch.where(mask_T, logprobs.detach() - rollout_logprobs, 0.0)
    return m2po_bound(correction, m2po_sizes(correction, z_T, advantages, mask_T))


def _check_counts(counts: Counts, mask: Tensor) -> None:
    tokens = int(mask.bool().sum())
    if counts.tokens < tokens:
        raise ValueError(
            f"counts: got {counts.tokens} tokens, and this microbatch alone has {tokens}; needs those of the "
            "whole optimizer batch"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the parts add up to."""

    value: Tensor
    """The loss without its entropy bonus."""
    slope_T: Tensor
    """Its derivative by each logprob."""
    slope_TK: Tensor | None
    """Its derivative by the logprobs of the teacher's likeliest tokens; None without a divergence."""
    entropy: Tensor
    """Sum of it over the tokens that trained."""
    trained_T: Tensor
    sums: dict[str, Tensor]


def _sum_of_parts(loss: LossSpec, packed: Packed, counts: Counts, limit: float | None) -> _Found:
    limit = _whole_limit(loss, packed) if limit is None else limit
    slope_T = torch.zeros_like(
        packed.logprobs, dtype=torch.promote_types(packed.logprobs.dtype, torch.float32)
    )
    top = None if packed.taught is None else packed.taught.top
    slope_TK = None if top is None else slope_T.new_zeros(top.logprobs_TK.shape)
    trained_T = torch.zeros_like(packed.logprobs, dtype=torch.bool)
    value = entropy = packed.logprobs.new_zeros((), dtype=torch.float64)
    tally = Tally(packed.logprobs.device)
    for part in parts(packed):
        inputs = read_inputs(loss, part.packed)
        weight_T = _weights(loss, part, counts, slope_T.dtype)
        more, slope_T[part.tokens] = _value_and_slope(loss, inputs, weight_T, limit, tally)
        value, trained_T[part.tokens] = value + more, inputs.trained_T
        if slope_TK is not None:
            more, of_sampled_T, slope_TK[part.tokens] = _divergence(loss, inputs, weight_T)
            value, slope_T[part.tokens] = value + more, slope_T[part.tokens] + of_sampled_T
        if inputs.entropy_T is not None:
            entropy = entropy + keep(inputs.entropy_T, inputs.trained_T).sum(dtype=torch.float64)
    return _Found(
        value=value,
        slope_T=slope_T,
        slope_TK=slope_TK,
        entropy=entropy,
        trained_T=trained_T,
        sums=tally.sums(),
    )


def _weights(loss: LossSpec, part: Part, counts: Counts, dtype: torch.dtype) -> Tensor:
    """The aggregation's weight of each token of the part, by the counts of the whole."""
    prompt_tokens_B = None if counts.prompt_tokens_B is None else counts.prompt_tokens_B[part.sequences]
    return token_weights(
        loss.aggregation,
        part.packed.mask,
        part.packed.sequence_ids,
        counts=replace(counts, prompt_tokens_B=prompt_tokens_B),
        dtype=dtype,
    )


def _m2po(loss: LossSpec) -> M2po | None:
    return next((correction for correction in loss.corrections if isinstance(correction, M2po)), None)


def _whole_limit(loss: LossSpec, packed: Packed) -> float | None:
    """The bound of m2po over all parts; None without m2po."""
    correction = _m2po(loss)
    if correction is None:
        return None
    sizes = []
    for part in parts(packed):
        inputs = read_inputs(loss, part.packed)
        z_T = inputs.drift_T if correction.scope == "harmful" else inputs.log_rho_T
        assert z_T is not None, "check sees to it"
        sizes.append(m2po_sizes(correction, z_T, inputs.tokens.advantages_T, inputs.tokens.mask_T))
    return m2po_bound(correction, torch.cat(sizes))


def _value_and_slope(
    loss: LossSpec, inputs: Inputs, weight_T: Tensor, limit: float | None, tally: Tally
) -> tuple[Tensor, Tensor]:
    """The loss of a part as a number, and its derivative by each logprob; the metrics go to the tally."""
    objective = surrogate(loss.objective, _tokens(loss, inputs))
    correction_T = _corrections(loss, inputs, limit)
    tally.add(
        objective,
        advantages_T=inputs.tokens.advantages_T,
        mask_T=inputs.tokens.mask_T,
        trained_T=inputs.trained_T,
        staleness_T=inputs.staleness_T,
        correction_T=correction_T,
        dropped_sequences=_dropped_sequences(inputs, correction_T),
        extra=_extra_values(inputs),
    )
    weight_T = weight_T * inputs.trained_T
    policy_T = weight_T if correction_T is None else weight_T * correction_T
    value_T = -policy_T * objective.value_T
    slope_T = -policy_T * objective.weight_T * inputs.tokens.advantages_T
    term = add_terms(_terms(loss, inputs))
    if term is not None:
        value_T, slope_T = value_T + weight_T * term.value_T, slope_T + weight_T * term.slope_T
    value_T = value_T + 0 * inputs.tokens.logprobs_T  # an infinite logprob shows, though a bound may hide it
    value = keep(value_T, inputs.trained_T).sum(dtype=torch.float64)
    return value, keep(slope_T, inputs.trained_T)


def _divergence(loss: LossSpec, inputs: Inputs, weight_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The divergence to the teacher as a number, with its derivatives by the sampled and the likeliest
    tokens' logprobs."""
    assert loss.distillation is not None, "check sees to it"
    assert inputs.taught is not None, "check sees to it"
    found = divergence_term(loss.distillation, inputs.tokens.logprobs_T, inputs.taught)
    trained_T = inputs.trained_T
    value = keep(weight_T * found.term.value_T, trained_T).sum(dtype=torch.float64)
    slope_TK = keep(weight_T[:, None] * found.slope_TK, trained_T[:, None].expand(found.slope_TK.shape))
    return value, keep(weight_T * found.term.slope_T, trained_T), slope_TK


def _tokens(loss: LossSpec, inputs: Inputs) -> Tokens:
    """What the objective sees: for vespo the weights of a tis correction are part of its ratio."""
    tokens, spec = inputs.tokens, _inside_ratio(loss)
    if spec is None:
        return tokens
    assert inputs.log_rho_T is not None, "check sees to it"
    c_T = correction_weight(
        spec, tokens, log_rho_T=inputs.log_rho_T, drift_T=inputs.log_rho_T, m2po_limit=None
    )
    parts_T = 1 if spec.level == "token" else tokens.of_token(tokens.lengths_B).clamp(min=1)
    return replace(tokens, log_ratio_T=tokens.log_ratio_T + c_T.log() / parts_T)


def _inside_ratio(loss: LossSpec) -> Tis | None:
    """The correction that vespo takes into W, log W += sum of log c; None for every other objective."""
    if not isinstance(loss.objective, Vespo):
        return None
    return next((correction for correction in loss.corrections if isinstance(correction, Tis)), None)


def _corrections(loss: LossSpec, inputs: Inputs, limit: float | None) -> Tensor | None:
    """The product of all corrections and of the selected tokens, [T]; None where there is none."""
    correction_T = None if inputs.selected_T is None else inputs.selected_T.to(inputs.tokens.logprobs_T)
    for spec in loss.corrections:
        if spec is _inside_ratio(loss):
            continue
        assert inputs.drift_T is not None, "check sees to it"
        rho_T = inputs.drift_T if inputs.log_rho_T is None else inputs.log_rho_T
        c_T = correction_weight(
            spec, inputs.tokens, log_rho_T=rho_T, drift_T=inputs.drift_T, m2po_limit=limit
        )
        correction_T = c_T if correction_T is None else correction_T * c_T
    return correction_T


def _terms(loss: LossSpec, inputs: Inputs) -> list[Term]:
    terms = []
    if loss.kl is not None and loss.kl.placement == "loss":
        assert inputs.log_ratio_ref_T is not None, "check sees to it"
        terms.append(kl_term(loss.kl, inputs.log_ratio_ref_T, inputs.tokens.log_ratio_T))
    if loss.drift_penalty is not None:
        assert inputs.drift_T is not None, "check sees to it"
        terms.append(drift_term(loss.drift_penalty, inputs.drift_T, inputs.tokens))
    if loss.kl_cov is not None:
        assert inputs.held_T is not None, "check sees to it"
        terms.append(covariance_term(loss.kl_cov, inputs.tokens.log_ratio_T, inputs.held_T))
    return terms


def _extra_values(inputs: Inputs) -> dict[str, Tensor]:
    found = {
        "kl_rollout": None if inputs.drift_T is None else k3(bounded(inputs.drift_T)),
        "kl_ref": None if inputs.log_ratio_ref_T is None else k3(-bounded(inputs.log_ratio_ref_T)),
        "kl_teacher": (
            None if inputs.log_ratio_teacher_T is None else k3(bounded(inputs.log_ratio_teacher_T))
        ),
        "entropy": inputs.entropy_T,
        "router_shift": inputs.tokens.router_shift_T,
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
