"""Whether a packed microbatch has every input of its loss, with the right shapes and numbers.

Errors name the arguments of `policy_loss`. Suffixes: _T packed tokens, _K tokens of the vocabulary.
"""

from typing import NoReturn

import torch
from torch import Tensor

from slipstream.algorithms import checks
from slipstream.algorithms.microbatch import Microbatch
from slipstream.algorithms.spec import Dppo, LossSpec, Rspo


def check(loss: LossSpec, microbatch: Microbatch) -> None:
    """Raise ValueError, naming the argument, unless the microbatch has every input of the loss.

    Wrong numbers are found on the device, and read with one copy to the host at the end.
    """
    checks.require_tensor("advantages", microbatch.advantages)
    constants = _constants(microbatch)
    for name, constant in constants.items():
        if constant is not None:
            checks.require_shape(name, constant, (microbatch.layout.tokens,), "logprobs")
            checks.require_floating(name, constant)
    _check_needs(loss, constants)
    _check_advantages(loss, microbatch)
    _check_staleness(loss, microbatch)
    _check_chosen(loss, microbatch)
    _check_taught(loss, microbatch)
    if isinstance(loss.objective, Dppo) and loss.objective.needs_top_k:
        _check_top_k(loss.objective, microbatch)
    _check_numbers(loss, microbatch)


def _constants(microbatch: Microbatch) -> dict[str, Tensor | None]:
    """The floating-point numbers [T] beside logprobs and advantages, by argument."""
    return {
        "rollout_logprobs": microbatch.rollout_logprobs_T,
        "old_logprobs": microbatch.old_logprobs_T,
        "ref_logprobs": microbatch.ref_logprobs_T,
        "entropy": microbatch.entropy_T,
        "router_shift": microbatch.router_shift_T,
        "teacher_logprobs": None if microbatch.taught is None else microbatch.taught.logprobs_T,
    }


def _check_needs(loss: LossSpec, constants: dict[str, Tensor | None]) -> None:
    anchor = loss.objective.anchor
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
        "teacher_logprobs": [(loss.distillation is not None, "the distillation")],
        "router_shift": [(isinstance(loss.objective, Rspo), "rspo")],
    }
    for name, needs in reasons.items():
        for needed, by in needs:
            if needed and constants[name] is None:
                raise ValueError(f"{name}: got None, {by} needs them")


def _check_advantages(loss: LossSpec, microbatch: Microbatch) -> None:
    checks.require_floating("advantages", microbatch.advantages)
    tokens, sequences = microbatch.layout.tokens, microbatch.layout.sequences
    if tuple(microbatch.advantages.shape) not in ((sequences,), (tokens,)):
        raise ValueError(
            f"advantages: got shape {list(microbatch.advantages.shape)}, needs [{sequences}], one for each "
            f"sequence, or [{tokens}], one for each token"
        )
    if not microbatch.has_one_advantage_per_sequence and loss.objective.one_advantage_per_sequence:
        raise ValueError(
            f"advantages: got one for each of {tokens} tokens, {loss.objective.kind} needs [{sequences}], "
            "one for each sequence; gspo_token takes one for each token"
        )


def _check_staleness(loss: LossSpec, microbatch: Microbatch) -> None:
    if microbatch.staleness_T is not None:
        checks.require_shape("staleness", microbatch.staleness_T, (microbatch.layout.tokens,), "mask")
    elif loss.max_staleness is not None:
        raise ValueError(
            f"staleness: got None, max_staleness {loss.max_staleness} needs the age of each token"
        )


def _check_chosen(loss: LossSpec, microbatch: Microbatch) -> None:
    """Require `selected` and `held` where a part of the loss reads them, and refuse them elsewhere."""
    readers: dict[str, dict[str, object]] = {
        "selected": {"top_entropy": loss.top_entropy, "clip_cov": loss.clip_cov},
        "held": {"kl_cov": loss.kl_cov},
    }
    for name, chosen_T in _chosen(microbatch).items():
        parts = readers[name]
        reading = [part for part, spec in parts.items() if spec is not None]
        if chosen_T is None and reading:
            raise ValueError(f"{name}: got None, {' and '.join(reading)} needs the tokens that it chooses")
        if chosen_T is not None and not reading:
            raise ValueError(
                f"{name}: got a mask, and the loss has no {' or '.join(parts)} that would read it"
            )
        if chosen_T is not None:
            checks.require_shape(name, chosen_T, (microbatch.layout.tokens,), "mask")


def _chosen(microbatch: Microbatch) -> dict[str, Tensor | None]:
    return {"selected": microbatch.selected_T, "held": microbatch.held_T}


def _check_taught(loss: LossSpec, microbatch: Microbatch) -> None:
    if microbatch.taught is None:
        return
    if loss.distillation is None:
        raise ValueError("taught: got a teacher's logprobs, and the loss has no distillation to read them")
    wanted, top = loss.distillation.resolved_top_k, microbatch.taught.top
    if (top is not None) != (wanted > 0):
        raise ValueError(
            f"taught.top: got {'none' if top is None else 'one'}, and distillation of the kind "
            f"{loss.distillation.kind} needs {'one' if wanted else 'none'}"
        )
    if top is None:
        return
    checks.require_floating("taught.top.logprobs_TK", top.logprobs_TK)
    checks.require_floating("taught.top.teacher_logprobs_TK", top.teacher_logprobs_TK)
    shape = (microbatch.layout.tokens, wanted)
    for name in ("logprobs_TK", "teacher_logprobs_TK", "sampled_TK"):
        checks.require_shape(f"taught.top.{name}", getattr(top, name), shape, "tokens and distillation.top_k")


def _check_numbers(loss: LossSpec, microbatch: Microbatch) -> None:
    """Check ages, masks of chosen tokens and router shifts, with one copy to the host."""
    wrong: dict[str, Tensor] = {}
    if microbatch.staleness_T is not None:
        wrong["staleness"] = (microbatch.mask_T & (microbatch.staleness_T < 0)).any()
    for name, chosen_T in _chosen(microbatch).items():
        if chosen_T is not None and chosen_T.dtype != torch.bool:
            wrong[name] = ~checks.zeros_and_ones(chosen_T)
    if isinstance(loss.objective, Rspo):
        wrong["router_shift"] = _outside_unit(microbatch).any()
    if not wrong:
        return
    for name, is_wrong in zip(wrong, torch.stack(list(wrong.values())).tolist(), strict=True):
        if is_wrong:
            _refuse_numbers(name, microbatch)


def _refuse_numbers(name: str, microbatch: Microbatch) -> NoReturn:
    if name == "staleness" and microbatch.staleness_T is not None:
        raise ValueError(
            f"staleness: got {int(microbatch.staleness_T.min())}, needs ages of 0 or more policy versions"
        )
    if name == "router_shift" and microbatch.router_shift_T is not None:
        got = microbatch.router_shift_T[_outside_unit(microbatch)][:4].tolist()
        raise ValueError(f"router_shift: got {got}, needs numbers in (0, 1]")
    checks.refuse_mask(name)


def _outside_unit(microbatch: Microbatch) -> Tensor:
    """[T] bool: where the router shift is no number in (0, 1]."""
    shift_T = microbatch.router_shift_T
    assert shift_T is not None, "_check_needs sees to it"
    return microbatch.mask_T & ~((shift_T > 0) & (shift_T <= 1))


def _check_top_k(objective: Dppo, microbatch: Microbatch) -> None:
    top_k, tokens = microbatch.top_k, microbatch.layout.tokens
    if top_k is None:
        raise ValueError(
            f"top_k: got None, dppo with the divergence {objective.divergence} needs the logprobs of the "
            "rollout's top K tokens; binary_tv does without"
        )
    shape = tuple(top_k.logprobs_TK.shape)
    if len(shape) != 2 or shape[0] != tokens:
        raise ValueError(f"top_k.logprobs_TK: got shape {list(shape)}, needs [{tokens}, K]")
    checks.require_shape("top_k.rollout_logprobs_TK", top_k.rollout_logprobs_TK, shape, "top_k.logprobs_TK")
    checks.require_shape("top_k.sampled_TK", top_k.sampled_TK, shape, "top_k.logprobs_TK")
