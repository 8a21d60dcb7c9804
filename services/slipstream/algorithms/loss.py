"""The policy loss of one packed microbatch, with its gradient.

Every term of the loss has a slope by the logprob of its own token in closed form: -w c g, plus the slopes of
the regularisers. So the loss is a number with its slopes, and only the logprobs and the entropy have a
gradient.

Suffixes: _T packed tokens, _B sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slipstream.algorithms import (
    aggregation,
    checks,
    corrections,
    loss_parts,
    microbatch_checks,
    resolve,
    sloped,
)
from slipstream.algorithms.layout import Layout, lay_out
from slipstream.algorithms.metrics import finalize, finalize_by_staleness
from slipstream.algorithms.microbatch import Microbatch, Taught, TopK
from slipstream.algorithms.spec import LossSpec
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
    gates_T: Tensor
    """[T] factor by which the objective and the corrections weigh the advantage of each token, g / A; 0 where
    nothing trains."""
    sides_T: Tensor
    """[T] int8: -1 where the lower end of the objective's band took effect, 1 where the upper did, else 0."""

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
    counts: aggregation.Counts | None = None,
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
    loss = resolve.resolve_loss(spec)
    _check_logprobs(logprobs)
    with torch.no_grad():
        layout = _layout_of(logprobs, mask, sequence_ids, layout)
    microbatch = Microbatch(
        layout=layout,
        logprobs_T=logprobs,
        rollout_logprobs_T=rollout_logprobs,
        old_logprobs_T=old_logprobs,
        ref_logprobs_T=ref_logprobs,
        advantages=advantages,
        staleness_T=staleness,
        entropy_T=entropy,
        selected_T=selected,
        held_T=held,
        router_shift_T=router_shift,
        top_k=top_k,
        taught=taught,
    )
    return microbatch_loss(
        loss,
        microbatch,
        counts=counts or aggregation.count_layout(layout, group_ids),
        entropy_coefficient=entropy_coefficient,
        m2po_limit=m2po_limit,
        tally=tally,
    )


def microbatch_loss(
    loss: LossSpec,
    microbatch: Microbatch,
    *,
    counts: aggregation.Counts,
    entropy_coefficient: float | None = None,
    m2po_limit: float | None = None,
    tally: Tally | None = None,
) -> PolicyLoss:
    """Compute `policy_loss` of a microbatch; see there for the arguments.

    Raises ValueError for mismatched shapes, or an input that the spec needs and lacks.
    """
    logprobs_T, entropy_T = microbatch.logprobs_T, microbatch.entropy_T
    with torch.no_grad():
        microbatch_checks.check(loss, microbatch)
        _check_counts(counts, microbatch.layout)
        tally = tally or Tally(logprobs_T.device)
        summed = loss_parts.sum_parts(loss, microbatch, counts, m2po_limit, tally)
    total = sloped.with_slope(summed.value, logprobs_T, summed.slope_T)
    if summed.slope_TK is not None:
        assert microbatch.taught is not None, "there is a slope"
        assert microbatch.taught.top is not None, "there is a slope"
        likeliest_TK = microbatch.taught.top.logprobs_TK
        total = total + sloped.with_slope(torch.zeros_like(summed.value), likeliest_TK, summed.slope_TK)
    if loss.entropy is not None and entropy_T is not None:
        coefficient = loss.entropy.coefficient if entropy_coefficient is None else entropy_coefficient
        factor = -coefficient / max(counts.tokens, 1)
        total = total + sloped.with_slope(
            factor * summed.entropy, entropy_T, (factor * summed.trained_T).to(total)
        )
    return PolicyLoss(loss=total, tally=tally, gates_T=summed.gates_T, sides_T=summed.sides_T)


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
    checks.require_floating("logprobs", logprobs)
    tensors = {"rollout_logprobs": rollout_logprobs, "advantages": advantages, "mask": mask}
    for name, tensor in tensors.items():
        checks.require_shape(name, tensor, tuple(logprobs.shape), "logprobs")
    correction = loss_parts.m2po_of(resolve.resolve_loss(spec))
    if correction is None:
        return torch.inf
    mask_T = mask.bool()
    z_T = torch.where(mask_T, logprobs.detach() - rollout_logprobs, 0.0)
    return corrections.m2po_bound(correction, corrections.m2po_sizes(correction, z_T, advantages, mask_T))


def _check_logprobs(logprobs: Tensor) -> None:
    checks.require_tensor("logprobs", logprobs)
    if logprobs.ndim != 1:
        raise ValueError(f"logprobs: got shape {list(logprobs.shape)}, needs packed tokens [T]")
    checks.require_floating("logprobs", logprobs)


def _layout_of(
    logprobs: Tensor, mask: Tensor | None, sequence_ids: Tensor | None, layout: Layout | None
) -> Layout:
    """Return the layout that was passed, or else the layout of mask and sequence_ids."""
    if layout is not None:
        if mask is not None or sequence_ids is not None:
            raise ValueError("layout: got it beside mask or sequence_ids, needs it in the place of both")
        checks.require_shape("layout", layout.mask_T, tuple(logprobs.shape), "logprobs")
        return layout
    if mask is None or sequence_ids is None:
        raise ValueError("mask, sequence_ids: got None, needs both, or layout in their place")
    checks.require_shape("mask", mask, tuple(logprobs.shape), "logprobs")
    checks.require_shape("sequence_ids", sequence_ids, tuple(logprobs.shape), "logprobs")
    return lay_out(mask, sequence_ids)


def _check_counts(counts: aggregation.Counts, layout: Layout) -> None:
    if counts.tokens < layout.counted:
        raise ValueError(
            f"counts: got {counts.tokens} tokens, and this microbatch alone has {layout.counted}; needs "
            "those of the whole optimizer batch"
        )
    if counts.prompt_tokens_B is not None:
        checks.require_shape(
            "counts.prompt_tokens_B", counts.prompt_tokens_B, (layout.sequences,), "the sequences"
        )
