"""The tokens of a microbatch as a policy loss reads them: float32 or wider, and 0 outside the mask.

Suffixes: _T packed tokens, _K tokens of the vocabulary. l logprobs, A advantages.
"""

from typing import TypeVar

import torch
from torch import Tensor

from slipstream.algorithms import distillation, objectives, spec
from slipstream.algorithms.layout import Layout
from slipstream.algorithms.microbatch import Microbatch, Taught, TeacherTop, TopK, map_tensors
from slipstream.algorithms.staleness import over_age_mask

Top = TypeVar("Top", TopK | None, TeacherTop | None)


def read_tokens(loss: spec.LossSpec, microbatch: Microbatch) -> objectives.Tokens:
    """Return the tokens of a microbatch that `check` has accepted."""
    layout = microbatch.layout
    l_T = layout.keep(wide(microbatch.logprobs_T.detach()))

    def constant(value_T: Tensor | None) -> Tensor | None:
        return None if value_T is None else layout.keep(value_T.detach().to(l_T))

    mu_T, prox_T = constant(microbatch.rollout_logprobs_T), constant(microbatch.old_logprobs_T)
    ref_T, taught = constant(microbatch.ref_logprobs_T), microbatch.taught
    teacher_T = None if taught is None else constant(taught.logprobs_T)
    anchor_T = {"rollout": mu_T, "batch": prox_T, None: None}[loss.objective.anchor]
    A_T = layout.keep(_per_token(microbatch).to(l_T))
    if loss.distillation is not None and teacher_T is not None:
        A_T = distillation.teacher_advantages(loss.distillation, A_T, l_T, teacher_T)
    if loss.token_weight == "one_minus_ref":
        assert ref_T is not None, "check sees to it"
        A_T = A_T * -torch.expm1(ref_T)
    drift_T = None if mu_T is None else l_T - mu_T
    needs_prox = any(correction.needs_batch_anchor for correction in loss.corrections)
    return objectives.Tokens(
        layout=layout,
        logprobs_T=l_T,
        rollout_logprobs_T=mu_T,
        old_logprobs_T=prox_T,
        ref_logprobs_T=ref_T,
        advantages=A_T,
        staleness_T=microbatch.staleness_T,
        entropy_T=constant(microbatch.entropy_T),
        selected_T=None if microbatch.selected_T is None else microbatch.selected_T.bool(),
        held_T=None if microbatch.held_T is None else microbatch.held_T.bool(),
        router_shift_T=_router_shift(loss, constant(microbatch.router_shift_T), layout),
        top_k=_likeliest(microbatch.top_k, layout) if _reads_top_k(loss) else None,
        taught=_taught(taught, teacher_T, layout),
        log_ratio_T=torch.zeros_like(l_T) if anchor_T is None else l_T - anchor_T,
        drift_T=drift_T,
        log_rho_T=prox_T - mu_T if needs_prox and prox_T is not None and mu_T is not None else drift_T,
        trained_T=_trained(loss, microbatch.staleness_T, layout.mask_T),
        trains_whole_mask=loss.max_staleness is None,
    )


def wide(logprobs: Tensor) -> Tensor:
    """Return the logprobs in float32 at least."""
    return logprobs if logprobs.dtype == torch.float64 else logprobs.float()


def _per_token(microbatch: Microbatch) -> Tensor:
    advantages = microbatch.advantages.detach()
    return advantages[microbatch.sequence_ids_T] if microbatch.has_one_advantage_per_sequence else advantages


def _trained(loss: spec.LossSpec, staleness: Tensor | None, mask_T: Tensor) -> Tensor:
    if loss.max_staleness is None:
        return mask_T
    assert staleness is not None, "check sees to it"
    return mask_T & ~over_age_mask(staleness, loss.max_staleness)


def _router_shift(loss: spec.LossSpec, shift_T: Tensor | None, layout: Layout) -> Tensor | None:
    if shift_T is None or not isinstance(loss.objective, spec.Rspo):
        return None
    return shift_T if layout.is_full else torch.where(layout.mask_T, shift_T, 1.0)


def _taught(taught: Taught | None, teacher_T: Tensor | None, layout: Layout) -> Taught | None:
    if taught is None or teacher_T is None:
        return None
    return Taught(logprobs_T=teacher_T, top=_likeliest(taught.top, layout))


def _reads_top_k(loss: spec.LossSpec) -> bool:
    return isinstance(loss.objective, spec.Dppo) and loss.objective.needs_top_k


def _likeliest(top: Top, layout: Layout) -> Top:
    """Return the likeliest tokens with logprobs in float32 or wider; 0 and unsampled outside the mask."""

    def read(name: str, value_TK: Tensor) -> Tensor:
        if name == "sampled_TK":
            return value_TK.bool() & layout.mask_T[:, None]
        return layout.keep(wide(value_TK.detach()))

    return None if top is None else map_tensors(top, read)
