"""The tensors that come into a policy loss: checked, widened, and 0 wherever they are masked.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms.checks import count_sequences, require_floating, require_mask, require_shape
from slipstream.algorithms.objectives import Tokens, TopK
from slipstream.algorithms.ratios import keep
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.spec import (
    ONE_ADVANTAGE_PER_SEQUENCE,
    Dppo,
    LossSpec,
    Rspo,
    anchor_of,
    needs_batch_anchor,
)
from slipstream.algorithms.staleness import over_age_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Constants of one microbatch, finite, and 0 outside the mask."""

    tokens: Tokens
    trained_T: Tensor
    """Bool: in the mask and not over age."""
    staleness_T: Tensor | None
    selected_T: Tensor | None
    """Bool: chosen by top_entropy."""
    log_rho_T: Tensor | None
    """log prox - log mu."""
    drift_T: Tensor | None
    """l - log mu."""
    log_ratio_ref_T: Tensor | None
    """l - log ref."""
    entropy_T: Tensor | None


def read_inputs(
    loss: LossSpec,
    *,
    logprobs: Tensor,
    rollout_logprobs: Tensor | None,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    sequence_ids: Tensor,
    staleness: Tensor | None,
    entropy: Tensor | None,
    selected: Tensor | None,
    router_shift: Tensor | None,
    top_k: TopK | None,
) -> Inputs:
    """Check what `policy_loss` was given and bring it into one form. Raises ValueError, naming the input."""
    _check_logprobs(logprobs, mask, sequence_ids)
    constants = {"rollout_logprobs": rollout_logprobs, "old_logprobs": old_logprobs}
    constants |= {"ref_logprobs": ref_logprobs, "entropy": entropy, "router_shift": router_shift}
    _check_constants(constants, logprobs)
    _check_needs(loss, constants)
    mask_T = mask.bool()
    l_T = keep(_wide(logprobs.detach()), mask_T)
    wide = {n: None if c is None else keep(c.detach().to(l_T), mask_T) for n, c in constants.items()}
    mu_T, prox_T, ref_T = wide["rollout_logprobs"], wide["old_logprobs"], wide["ref_logprobs"]
    anchor_T = {"rollout": mu_T, "batch": prox_T, None: None}[anchor_of(loss.objective)]
    A_T = keep(_per_token(loss, advantages, sequence_ids).to(l_T), mask_T)
    if loss.token_weight == "one_minus_ref":
        assert ref_T is not None, "_check_needs sees to it"
        A_T = A_T * -torch.expm1(ref_T)
    needs_rho = any(map(needs_batch_anchor, loss.corrections))
    return Inputs(
        tokens=Tokens(
            logprobs_T=l_T,
            log_ratio_T=torch.zeros_like(l_T) if anchor_T is None else l_T - anchor_T,
            advantages_T=A_T,
            mask_T=mask_T,
            sequence_ids_T=sequence_ids,
            lengths_B=segment_sum(mask_T.to(l_T), sequence_ids, count_sequences(sequence_ids)),
            router_shift_T=None
            if not isinstance(loss.objective, Rspo)
            else _shift(wide["router_shift"], mask_T),
            top_k=_top_k(loss, top_k, mask_T),
        ),
        trained_T=mask_T & ~_over_age(loss, staleness, mask_T),
        staleness_T=staleness,
        selected_T=_selected(loss, selected, mask_T),
        log_rho_T=prox_T - mu_T if needs_rho and prox_T is not None and mu_T is not None else None,
        drift_T=None if mu_T is None else l_T - mu_T,
        log_ratio_ref_T=None if ref_T is None else l_T - ref_T,
        entropy_T=wide["entropy"],
    )


def _check_logprobs(logprobs: Tensor, mask: Tensor, sequence_ids: Tensor) -> None:
    if logprobs.ndim != 1:
        raise ValueError(f"logprobs: got shape {list(logprobs.shape)}, needs packed tokens [T]")
    require_floating("logprobs", logprobs)
    require_shape("mask", mask, tuple(logprobs.shape), "logprobs")
    require_mask("mask", mask)
    require_shape("sequence_ids", sequence_ids, tuple(logprobs.shape), "logprobs")


def _check_constants(constants: dict[str, Tensor | None], logprobs: Tensor) -> None:
    for name, constant in constants.items():
        if constant is not None:
            require_shape(name, constant, tuple(logprobs.shape), "logprobs")
            require_floating(name, constant)


def _check_needs(loss: LossSpec, constants: dict[str, Tensor | None]) -> None:
    anchor = anchor_of(loss.objective)
    reasons = {
        "rollout_logprobs": [
            (anchor == "rollout", f"{loss.objective.kind} with anchor rollout"),
            (bool(loss.corrections), f"the correction {', '.join(c.kind for c in loss.corrections)}"),
            (loss.drift_penalty is not None, "the drift penalty"),
        ],
        "old_logprobs": [
            (anchor == "batch", f"{loss.objective.kind} with anchor batch"),
            (loss.needs_old_logprobs, "the correction"),
        ],
        "ref_logprobs": [
            (loss.kl is not None and loss.kl.placement == "loss", "the KL term"),
            (loss.token_weight == "one_minus_ref", "the token weight one_minus_ref"),
        ],
        "entropy": [(loss.entropy is not None, "the entropy bonus")],
        "router_shift": [(isinstance(loss.objective, Rspo), "rspo")],
    }
    for name, needs in reasons.items():
        for needed, by in needs:
            if needed and constants[name] is None:
                raise ValueError(f"{name}: got None, {by} needs them")


def _per_token(loss: LossSpec, advantages: Tensor, sequence_ids: Tensor) -> Tensor:
    require_floating("advantages", advantages)
    tokens, sequences = sequence_ids.shape[0], count_sequences(sequence_ids)
    if tuple(advantages.shape) not in ((sequences,), (tokens,)):
        raise ValueError(
            f"advantages: got shape {list(advantages.shape)}, needs [{sequences}], one for each sequence, "
            f"or [{tokens}], one for each token"
        )
    if advantages.shape[0] == sequences:
        return advantages.detach()[sequence_ids]
    if isinstance(loss.objective, ONE_ADVANTAGE_PER_SEQUENCE):
        raise ValueError(
            f"advantages: got one for each of {tokens} tokens, {loss.objective.kind} needs "
            f"[{sequences}], one for each sequence; gspo_token takes one for each token"
        )
    return advantages.detach()


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


def _selected(loss: LossSpec, selected: Tensor | None, mask_T: Tensor) -> Tensor | None:
    if loss.top_entropy is None:
        return None
    if selected is None:
        raise ValueError("selected: got None, top_entropy needs the tokens that it lets train")
    require_shape("selected", selected, tuple(mask_T.shape), "mask")
    require_mask("selected", selected)
    return selected.bool()


def _shift(router_shift_T: Tensor | None, mask_T: Tensor) -> Tensor:
    assert router_shift_T is not None, "_check_needs sees to it"
    outside = mask_T & ~((router_shift_T > 0) & (router_shift_T <= 1))
    if bool(outside.any()):
        raise ValueError(f"router_shift: got {router_shift_T[outside][:4].tolist()}, needs numbers in (0, 1]")
    return torch.where(mask_T, router_shift_T, 1.0)


def _top_k(loss: LossSpec, top_k: TopK | None, mask_T: Tensor) -> TopK | None:
    if not (isinstance(loss.objective, Dppo) and loss.objective.needs_top_k):
        return None
    if top_k is None:
        raise ValueError(
            f"top_k: got None, dppo with the divergence {loss.objective.divergence} needs the logprobs of "
            "the rollout's top K tokens; binary_tv does without"
        )
    shape = top_k.logprobs_TK.shape
    if len(shape) != 2 or shape[0] != mask_T.shape[0]:
        raise ValueError(f"top_k.logprobs_TK: got shape {list(shape)}, needs [{mask_T.shape[0]}, K]")
    require_shape("top_k.rollout_logprobs_TK", top_k.rollout_logprobs_TK, tuple(shape), "top_k.logprobs_TK")
    require_shape("top_k.sampled_TK", top_k.sampled_TK, tuple(shape), "top_k.logprobs_TK")
    keep_TK = mask_T[:, None].expand(shape)
    return TopK(
        logprobs_TK=keep(_wide(top_k.logprobs_TK.detach()), keep_TK),
        rollout_logprobs_TK=keep(_wide(top_k.rollout_logprobs_TK.detach()), keep_TK),
        sampled_TK=top_k.sampled_TK.bool() & keep_TK,
    )


def _wide(logprobs: Tensor) -> Tensor:
    return logprobs if logprobs.dtype == torch.float64 else logprobs.float()
