"""The policy loss of one packed microbatch: objective, corrections, regularisers, weights, sum.

tokens ─▶ objective: J, g ─▶ × corrections c ─▶ + regularisers ─▶ × aggregation weight w ─▶ loss, metrics

Every term of the loss has a slope by the logprob of its own token in closed form: -w c g, plus the slopes of
the regularisers. So the loss is a number with its slopes, and only the logprobs and the entropy have a
gradient. Sequences meet only in the sum, so a row is computed in parts, which bounds the temporary memory.

Suffixes: _T packed tokens, _B sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms.aggregation import Counts, count_layout, sequence_weights, spread
from slipstream.algorithms.checks import require_floating, require_shape, require_tensor
from slipstream.algorithms.corrections import correction_weight, m2po_bound, m2po_sizes
from slipstream.algorithms.distillation import Taught, divergence_term
from slipstream.algorithms.inputs import Inputs, read_inputs
from slipstream.algorithms.layout import Layout, lay_out
from slipstream.algorithms.metrics import finalize, finalize_by_staleness
from slipstream.algorithms.objectives import Tokens, TopK, surrogate
from slipstream.algorithms.packed import Packed, check, parts
from slipstream.algorithms.ratios import bounded, k3
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
    tally: Tally
    """The sums for the metrics."""

    @property
    def sums(self) -> dict[str, Tensor]:
        """Additive sums without gradient, on the loss's device; see `merge` and `finalize`."""
        return self.tally.sums()

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of this microbatch alone, or of all in the tally that was passed, as `finalize` names
        them."""
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
    mask: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    layout: Layout | None = None,
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
    tally: Tally | None = None,
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
    sequence_ids: [T], 0, ..., B - 1 in order.
    layout: in the place of mask and sequence_ids, what `lay_out` makes of them; for a row of several losses.
    staleness: [T] policy versions, for max_staleness and metrics.
    group_ids: [B] prompt of each sequence, for prompt_mean. counts: of the whole optimizer batch.
    entropy: [T] nats, with gradient, for the entropy bonus; entropy_coefficient replaces the spec's.
    selected: [T] bool, the tokens that top_entropy and clip_cov let train; held: [T] bool, those that kl_cov
        holds near the anchor. Both are chosen over the whole batch.
    router_shift: [T] in (0, 1], for rspo. top_k: for dppo's topk divergences.
    taught: for distillation, what the teacher says of the tokens; the policy's own logprobs in its `top` have
        a gradient.
    m2po_limit: bound over the whole batch, see `m2po_limit`; without it, over these tokens.
    tally: of the microbatches before, to which this one is added in place; without it, a new one.
    The host waits for the device five times at most, however long the row.
    A batch without tokens gives a loss of 0 with zero gradient.
    Raises ValueError for mismatched shapes, unordered ids, or an input that the spec needs and lacks.
    """
    loss = resolve_loss(spec)
    _check_logprobs(logprobs)
    with torch.no_grad():
        layout = _layout_of(logprobs, mask, sequence_ids, layout)
    packed = Packed(
        layout=layout,
        logprobs=logprobs,
        rollout_logprobs=rollout_logprobs,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        advantages=advantages,
        staleness=staleness,
        entropy=entropy,
        selected=selected,
        held=held,
        router_shift=router_shift,
        top_k=top_k,
        taught=taught,
    )
    return packed_policy_loss(
        loss,
        packed,
        counts=counts or count_layout(layout, group_ids),
        entropy_coefficient=entropy_coefficient,
        m2po_limit=m2po_limit,
        tally=tally,
    )


def packed_policy_loss(
    loss: LossSpec,
    packed: Packed,
    *,
    counts: Counts,
    entropy_coefficient: float | None = None,
    m2po_limit: float | None = None,
    tally: Tally | None = None,
) -> PolicyLoss:
    """Compute `policy_loss` of a microbatch whose tensors are in one `Packed`; see there for the arguments.

    Raises ValueError for mismatched shapes, or an input that the spec needs and lacks.
    """
    logprobs, entropy = packed.logprobs, packed.entropy
    with torch.no_grad():
        check(loss, packed)
        _check_counts(counts, packed.layout)
        tally = tally or Tally(logprobs.device)
        summed = _sum_of_parts(loss, packed, counts, m2po_limit, tally)
    total = with_slope(summed.value, logprobs, summed.slope_T)
    if summed.slope_TK is not None:
        assert packed.taught is not None, "there is a slope"
        assert packed.taught.top is not None, "there is a slope"
        likeliest_TK = packed.taught.top.logprobs_TK
        total = total + with_slope(torch.zeros_like(summed.value), likeliest_TK, summed.slope_TK)
    if loss.entropy is not None and entropy is not None:
        coefficient = loss.entropy.coefficient if entropy_coefficient is None else entropy_coefficient
        factor = -coefficient / max(counts.tokens, 1)
        total = total + with_slope(factor * summed.entropy, entropy, (factor * summed.trained_T).to(total))
    return PolicyLoss(loss=total, tally=tally)


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


def _check_logprobs(logprobs: Tensor) -> None:
    require_tensor("logprobs", logprobs)
    if logprobs.ndim != 1:
        raise ValueError(f"logprobs: got shape {list(logprobs.shape)}, needs packed tokens [T]")
    require_floating("logprobs", logprobs)


def _layout_of(
    logprobs: Tensor, mask: Tensor | None, sequence_ids: Tensor | None, layout: Layout | None
) -> Layout:
    """Return the layout that was passed, or else the layout of mask and sequence_ids."""
    if layout is not None:
        if mask is not None or sequence_ids is not None:
            raise ValueError("layout: got it beside mask or sequence_ids, needs it in the place of both")
        require_shape("layout", layout.mask_T, tuple(logprobs.shape), "logprobs")
        return layout
    if mask is None or sequence_ids is None:
        raise ValueError("mask, sequence_ids: got None, needs both, or layout in their place")
    require_shape("mask", mask, tuple(logprobs.shape), "logprobs")
    require_shape("sequence_ids", sequence_ids, tuple(logprobs.shape), "logprobs")
    return lay_out(mask, sequence_ids)


def _check_counts(counts: Counts, layout: Layout) -> None:
    if counts.tokens < layout.counted:
        raise ValueError(
            f"counts: got {counts.tokens} tokens, and this microbatch alone has {layout.counted}; needs "
            "those of the whole optimizer batch"
        )
    if counts.prompt_tokens_B is not None:
        require_shape("counts.prompt_tokens_B", counts.prompt_tokens_B, (layout.sequences,), "the sequences")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """Loss, slopes and entropy, added over the parts."""

    value: Tensor
    """The loss without its entropy bonus."""
    slope_T: Tensor
    """Its derivative by each logprob."""
    slope_TK: Tensor | None
    """Its derivative by the logprobs of the teacher's likeliest tokens; None without a divergence."""
    entropy: Tensor
    """Sum of it over the tokens that trained."""
    trained_T: Tensor


def _sum_of_parts(loss: LossSpec, packed: Packed, counts: Counts, limit: float | None, tally: Tally) -> _Sum:
    limit = _whole_limit(loss, packed) if limit is None else limit
    slope_T = torch.zeros_like(
        packed.logprobs, dtype=torch.promote_types(packed.logprobs.dtype, torch.float32)
    )
    top = None if packed.taught is None else packed.taught.top
    slope_TK = None if top is None else slope_T.new_zeros(top.logprobs_TK.shape)
    trained_T = torch.zeros_like(packed.logprobs, dtype=torch.bool)
    value = entropy = packed.logprobs.new_zeros((), dtype=torch.float64)
    weight_B = sequence_weights(loss.aggregation, packed.layout, counts, dtype=slope_T.dtype)
    for part in parts(packed):
        inputs = read_inputs(loss, part.packed)
        weight_T = spread(weight_B[part.sequences], part.packed.layout)
        more, slope_T[part.tokens] = _value_and_slope(loss, inputs, weight_T, limit, tally)
        value, trained_T[part.tokens] = value + more, inputs.trained_T
        if slope_TK is not None:
            more, of_sampled_T, slope_TK[part.tokens] = _divergence(loss, inputs, weight_T)
            value, slope_T[part.tokens] = value + more, slope_T[part.tokens] + of_sampled_T
        if inputs.entropy_T is not None:
            entropy = entropy + inputs.keep(inputs.entropy_T).sum(dtype=torch.float64)
    return _Sum(
        value=value,
        slope_T=slope_T,
        slope_TK=slope_TK,
        entropy=entropy,
        trained_T=trained_T,
    )


def _m2po(loss: LossSpec) -> M2po | None:
    return next((correction for correction in loss.corrections if isinstance(correction, M2po)), None)


def _whole_limit(loss: LossSpec, packed: Packed) -> float | None:
    """Return the bound of m2po over all parts; None without m2po."""
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
    """Return the loss of a part and its derivative by each logprob; add the metrics to the tally."""
    objective = surrogate(loss.objective, _tokens(loss, inputs))
    correction_T = _corrections(loss, inputs, limit)
    tally.add(
        objective,
        advantages_T=inputs.tokens.advantages_T,
        mask_T=inputs.tokens.mask_T,
        trained_T=inputs.trained_T,
        everything_counts=inputs.layout.is_full,
        everything_trains=inputs.layout.is_full and inputs.trains_whole_mask,
        staleness_T=inputs.staleness_T,
        correction_T=correction_T,
        dropped_sequences=_dropped_sequences(inputs, correction_T),
        extra=_extra_values(inputs),
    )
    if not inputs.trains_whole_mask:
        weight_T = weight_T * inputs.trained_T
    policy_T = weight_T if correction_T is None else weight_T * correction_T
    value_T = -policy_T * objective.value_T
    g_T = objective.slope_T
    if g_T is None:
        g_T = objective.weight_T * inputs.tokens.advantages_T
    slope_T = -policy_T * g_T
    term = add_terms(_terms(loss, inputs))
    if term is not None:
        value_T, slope_T = value_T + weight_T * term.value_T, slope_T + weight_T * term.slope_T
    # 0 × inf is NaN: an infinite logprob shows in the loss, even where a bound hides it
    value_T = value_T + 0 * inputs.tokens.logprobs_T
    value = inputs.keep(value_T).sum(dtype=torch.float64)
    return value, inputs.keep(slope_T)


def _divergence(loss: LossSpec, inputs: Inputs, weight_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The divergence to the teacher as a number, with its derivatives by the sampled and the likeliest
    tokens' logprobs."""
    assert loss.distillation is not None, "check sees to it"
    assert inputs.taught is not None, "check sees to it"
    divergence = divergence_term(loss.distillation, inputs.tokens.logprobs_T, inputs.taught)
    value = inputs.keep(weight_T * divergence.term.value_T).sum(dtype=torch.float64)
    slope_TK = inputs.keep(weight_T[:, None] * divergence.slope_TK)
    return value, inputs.keep(weight_T * divergence.term.slope_T), slope_TK


def _tokens(loss: LossSpec, inputs: Inputs) -> Tokens:
    """Return the objective's tokens. For vespo the weights of a tis correction are part of the ratio."""
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
    values = {
        "kl_rollout": None if inputs.drift_T is None else k3(bounded(inputs.drift_T)),
        "kl_ref": None if inputs.log_ratio_ref_T is None else k3(-bounded(inputs.log_ratio_ref_T)),
        "kl_teacher": (
            None if inputs.log_ratio_teacher_T is None else k3(bounded(inputs.log_ratio_teacher_T))
        ),
        "entropy": inputs.entropy_T,
        "router_shift": inputs.tokens.router_shift_T,
    }
    return {name: value_T for name, value_T in values.items() if value_T is not None}


def _dropped_sequences(inputs: Inputs, correction_T: Tensor | None) -> Tensor | None:
    """Count the sequences whose trained tokens the corrections all drop; None without corrections."""
    if correction_T is None:
        return None
    tokens, sequences = inputs.tokens, inputs.layout.sequences
    kept_T = ((correction_T != 0) & inputs.trained_T).to(tokens.lengths_B)
    trained_B = tokens.lengths_B
    if not inputs.trains_whole_mask:
        trained_B = segment_sum(inputs.trained_T.to(trained_B), tokens.sequence_ids_T, sequences)
    kept_B = segment_sum(kept_T, tokens.sequence_ids_T, sequences)
    return ((trained_B > 0) & (kept_B == 0)).sum().double()
