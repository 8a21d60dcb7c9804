"""The inputs of a policy loss in one form: float32 or wider, and 0 outside the mask.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms.distillation import Taught, TeacherTop, teacher_advantages
from slipstream.algorithms.layout import Layout
from slipstream.algorithms.objectives import Tokens, TopK
from slipstream.algorithms.packed import Packed
from slipstream.algorithms.ratios import keep
from slipstream.algorithms.spec import Dppo, LossSpec, Rspo
from slipstream.algorithms.staleness import over_age_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Constants of one microbatch, finite, and 0 outside the mask."""

    layout: Layout
    tokens: Tokens
    trained_T: Tensor
    """Bool: in the mask and not over age."""
    trains_whole_mask: bool
    """No token is over age: trained_T is the mask."""
    staleness_T: Tensor | None
    selected_T: Tensor | None
    """Bool: the tokens that top_entropy and clip_cov select."""
    held_T: Tensor | None
    """Bool: the tokens that kl_cov holds near the anchor."""
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

    def keep(self, value_T: Tensor) -> Tensor:
        """Return value_T [T], or [T, K], with 0 where a token does not train."""
        return self.layout.keep(value_T) if self.trains_whole_mask else keep(value_T, self.trained_T)


def read_inputs(loss: LossSpec, packed: Packed) -> Inputs:
    """Return the inputs of a microbatch that `check` has accepted."""
    layout = packed.layout
    l_T = layout.keep(wide(packed.logprobs.detach()))
    constants = packed.constants.items()
    constants_T = {name: None if c is None else layout.keep(c.detach().to(l_T)) for name, c in constants}
    names = ("rollout_logprobs", "old_logprobs", "ref_logprobs")
    mu_T, prox_T, ref_T = (constants_T[name] for name in names)
    anchor_T = {"rollout": mu_T, "batch": prox_T, None: None}[loss.objective.anchor]
    A_T = layout.keep(_per_token(packed).to(l_T))
    teacher_T = constants_T["teacher_logprobs"]
    if loss.distillation is not None and teacher_T is not None:
        A_T = teacher_advantages(loss.distillation, A_T, l_T, teacher_T)
    if loss.token_weight == "one_minus_ref":
        assert ref_T is not None, "check sees to it"
        A_T = A_T * -torch.expm1(ref_T)
    needs_rho = any(correction.needs_batch_anchor for correction in loss.corrections)
    return Inputs(
        layout=layout,
        tokens=Tokens(
            logprobs_T=l_T,
            log_ratio_T=torch.zeros_like(l_T) if anchor_T is None else l_T - anchor_T,
            advantages_T=A_T,
            mask_T=layout.mask_T,
            sequence_ids_T=layout.sequence_ids_T,
            lengths_B=layout.lengths_B.to(l_T),
            router_shift_T=_router_shift(loss, constants_T["router_shift"], layout),
            top_k=_top_k(loss, packed.top_k, layout),
        ),
        trained_T=_trained(loss, packed.staleness, layout.mask_T),
        trains_whole_mask=loss.max_staleness is None,
        staleness_T=packed.staleness,
        selected_T=None if packed.selected is None else packed.selected.bool(),
        held_T=None if packed.held is None else packed.held.bool(),
        log_rho_T=prox_T - mu_T if needs_rho and prox_T is not None and mu_T is not None else None,
        drift_T=None if mu_T is None else l_T - mu_T,
        log_ratio_ref_T=None if ref_T is None else l_T - ref_T,
        entropy_T=constants_T["entropy"],
        log_ratio_teacher_T=None if teacher_T is None else teacher_T - l_T,
        taught=_taught(packed.taught, teacher_T, layout),
    )


def wide(logprobs: Tensor) -> Tensor:
    """Return the logprobs in float32 at least."""
    return logprobs if logprobs.dtype == torch.float64 else logprobs.float()


def _per_token(packed: Packed) -> Tensor:
    advantages = packed.advantages.detach()
    return advantages[packed.sequence_ids] if packed.has_one_advantage_per_sequence else advantages


def _trained(loss: LossSpec, staleness: Tensor | None, mask_T: Tensor) -> Tensor:
    if loss.max_staleness is None:
        return mask_T
    assert staleness is not None, "check sees to it"
    return mask_T & ~over_age_mask(staleness, loss.max_staleness)


def _router_shift(loss: LossSpec, shift_T: Tensor | None, layout: Layout) -> Tensor | None:
    if shift_T is None or not isinstance(loss.objective, Rspo):
        return None
    return shift_T if layout.is_full else torch.where(layout.mask_T, shift_T, 1.0)


def _taught(taught: Taught | None, teacher_T: Tensor | None, layout: Layout) -> Taught | None:
    if taught is None or teacher_T is None or taught.top is None:
        return None
    top = TeacherTop(
        logprobs_TK=layout.keep(wide(taught.top.logprobs_TK.detach())),
        teacher_logprobs_TK=layout.keep(wide(taught.top.teacher_logprobs_TK.detach())),
        sampled_TK=taught.top.sampled_TK.bool() & layout.mask_T[:, None],
    )
    return Taught(logprobs_T=teacher_T, top=top)


def _top_k(loss: LossSpec, top_k: TopK | None, layout: Layout) -> TopK | None:
    if top_k is None or not (isinstance(loss.objective, Dppo) and loss.objective.needs_top_k):
        return None
    return TopK(
        logprobs_TK=layout.keep(wide(top_k.logprobs_TK.detach())),
        rollout_logprobs_TK=layout.keep(wide(top_k.rollout_logprobs_TK.detach())),
        sampled_TK=top_k.sampled_TK.bool() & layout.mask_T[:, None],
    )
