"""The tensors that a policy loss computes with: widened, and 0 wherever they are masked.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms.checks import count_sequences
from slipstream.algorithms.distillation import Taught, TeacherTop, teacher_advantages
from slipstream.algorithms.objectives import Tokens, TopK
from slipstream.algorithms.packed import Packed
from slipstream.algorithms.ratios import keep
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.spec import Dppo, LossSpec, Rspo, anchor_of, needs_batch_anchor
from slipstream.algorithms.staleness import over_age_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Constants of one microbatch, finite, and 0 outside the mask."""

    tokens: Tokens
    trained_T: Tensor
    """Bool: in the mask and not over age."""
    staleness_T: Tensor | None
    selected_T: Tensor | None
    """Bool: what top_entropy and clip_cov let train."""
    held_T: Tensor | None
    """Bool: what kl_cov holds near the anchor."""
    log_rho_T: Tensor | None
    """log prox - log mu."""
    drift_T: Tensor | None
    """l - log mu."""
    log_ratio_ref_T: Tensor | None
    """l - log ref."""
    entropy_T: Tensor | None
    log_ratio_teacher_T: Tensor | None
    """log teacher - l."""
    taught: Taught | None


def read_inputs(loss: LossSpec, packed: Packed) -> Inputs:
    """Bring what `policy_loss` was given, checked before, into one form."""
    mask_T, ids_T = packed.mask.bool(), packed.sequence_ids
    l_T = keep(wide(packed.logprobs.detach()), mask_T)
    constants = packed.constants.items()
    known = {name: None if c is None else keep(c.detach().to(l_T), mask_T) for name, c in constants}
    mu_T, prox_T, ref_T = known["rollout_logprobs"], known["old_logprobs"], known["ref_logprobs"]
    anchor_T = {"rollout": mu_T, "batch": prox_T, None: None}[anchor_of(loss.objective)]
    A_T = keep(_per_token(packed).to(l_T), mask_T)
    teacher_T = known["teacher_logprobs"]
    if loss.distillation is not None and teacher_T is not None:
        A_T = teacher_advantages(loss.distillation, A_T, l_T, teacher_T)
    if loss.token_weight == "one_minus_ref":
        assert ref_T is not None, "check sees to it"
        A_T = A_T * -torch.expm1(ref_T)
    needs_rho = any(map(needs_batch_anchor, loss.corrections))
    return Inputs(
        tokens=Tokens(
            logprobs_T=l_T,
            log_ratio_T=torch.zeros_like(l_T) if anchor_T is None else l_T - anchor_T,
            advantages_T=A_T,
            mask_T=mask_T,
            sequence_ids_T=ids_T,
            lengths_B=segment_sum(mask_T.to(l_T), ids_T, count_sequences(ids_T)),
            router_shift_T=_router_shift(loss, known["router_shift"], mask_T),
            top_k=_top_k(loss, packed.top_k, mask_T),
        ),
        trained_T=mask_T & ~_over_age(loss, packed.staleness, mask_T),
        staleness_T=packed.staleness,
        selected_T=None if packed.selected is None else packed.selected.bool(),
        held_T=None if packed.held is None else packed.held.bool(),
        log_rho_T=prox_T - mu_T if needs_rho and prox_T is not None and mu_T is not None else None,
        drift_T=None if mu_T is None else l_T - mu_T,
        log_ratio_ref_T=None if ref_T is None else l_T - ref_T,
        entropy_T=known["entropy"],
        log_ratio_teacher_T=None if teacher_T is None else teacher_T - l_T,
        taught=_taught(packed.taught, teacher_T, mask_T),
    )


def wide(logprobs: Tensor) -> Tensor:
    """Return the logprobs in float32 at least."""
    return logprobs if logprobs.dtype == torch.float64 else logprobs.float()


def _per_token(packed: Packed) -> Tensor:
    advantages = packed.advantages.detach()
    by_sequence = advantages.shape[0] == count_sequences(packed.sequence_ids)
    return advantages[packed.sequence_ids] if by_sequence else advantages


def _over_age(loss: LossSpec, staleness: Tensor | None, mask_T: Tensor) -> Tensor:
    if loss.max_staleness is None:
        return torch.zeros_like(mask_T)
    assert staleness is not None, "check sees to it"
    return over_age_mask(staleness, loss.max_staleness)


def _router_shift(loss: LossSpec, shift_T: Tensor | None, mask_T: Tensor) -> Tensor | None:
    if shift_T is None or not isinstance(loss.objective, Rspo):
        return None
    return torch.where(mask_T, shift_T, 1.0)


def _taught(taught: Taught | None, teacher_T: Tensor | None, mask_T: Tensor) -> Taught | None:
    if taught is None or teacher_T is None or taught.top is None:
        return None
    keep_TK = mask_T[:, None].expand(taught.top.logprobs_TK.shape)
    top = TeacherTop(
        logprobs_TK=keep(wide(taught.top.logprobs_TK.detach()), keep_TK),
        teacher_logprobs_TK=keep(wide(taught.top.teacher_logprobs_TK.detach()), keep_TK),
        sampled_TK=taught.top.sampled_TK.bool() & keep_TK,
    )
    return Taught(logprobs_T=teacher_T, top=top)


def _top_k(loss: LossSpec, top_k: TopK | None, mask_T: Tensor) -> TopK | None:
    if top_k is None or not (isinstance(loss.objective, Dppo) and loss.objective.needs_top_k):
        return None
    keep_TK = mask_T[:, None].expand(top_k.logprobs_TK.shape)
    return TopK(
        logprobs_TK=keep(wide(top_k.logprobs_TK.detach()), keep_TK),
        rollout_logprobs_TK=keep(wide(top_k.rollout_logprobs_TK.detach()), keep_TK),
        sampled_TK=top_k.sampled_TK.bool() & keep_TK,
    )
