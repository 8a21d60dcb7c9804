"""The tensors of one packed microbatch: checked, and cut into parts of whole sequences.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from slipstream.algorithms.checks import (
    refuse_mask,
    require_floating,
    require_shape,
    require_tensor,
    zeros_and_ones,
)
from slipstream.algorithms.distillation import Taught
from slipstream.algorithms.layout import Layout
from slipstream.algorithms.objectives import TopK
from slipstream.algorithms.spec import Dppo, LossSpec, Rspo


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The arguments of `policy_loss` with an element for each token or sequence, unchanged, and their
    layout."""

    layout: Layout
    logprobs: Tensor
    rollout_logprobs: Tensor | None
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    advantages: Tensor
    staleness: Tensor | None
    entropy: Tensor | None
    selected: Tensor | None
    held: Tensor | None
    router_shift: Tensor | None
    top_k: TopK | None
    taught: Taught | None = None

    @property
    def mask(self) -> Tensor:
        """[T] bool."""
        return self.layout.mask_T

    @property
    def sequence_ids(self) -> Tensor:
        """[T], 0, ..., B - 1 in order."""
        return self.layout.sequence_ids_T

    @property
    def has_one_advantage_per_sequence(self) -> bool:
        """The advantages are [B], not [T]."""
        return self.advantages.shape[0] == self.layout.sequences

    @property
    def constants(self) -> dict[str, Tensor | None]:
        """The other floating-point arguments [T] by name."""
        names = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "entropy", "router_shift")
        teacher = None if self.taught is None else self.taught.logprobs_T
        return {name: getattr(self, name) for name in names} | {"teacher_logprobs": teacher}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some whole sequences of a microbatch as one of their own, and their position in the whole one."""

    packed: Packed
    tokens: slice
    sequences: slice


def parts(packed: Packed) -> Iterator[Part]:
    """Cut a checked microbatch into the parts of its layout; one at least."""
    for piece in packed.layout.pieces():
        if piece.layout is packed.layout:
            yield Part(packed=packed, tokens=piece.tokens, sequences=piece.sequences)
            return
        names = {f.name for f in fields(packed)} - {"layout", "advantages"}
        arguments: dict[str, Any] = {name: _cut(getattr(packed, name), piece.tokens) for name in names}
        by = piece.sequences if packed.has_one_advantage_per_sequence else piece.tokens
        part = Packed(layout=piece.layout, advantages=packed.advantages[by], **arguments)
        yield Part(packed=part, tokens=piece.tokens, sequences=piece.sequences)


def check(loss: LossSpec, packed: Packed) -> None:
    """Raise ValueError, naming the argument, unless the microbatch has every input of the loss.

    Wrong numbers are found on the device, and read with one copy to the host at the end.
    """
    require_tensor("advantages", packed.advantages)
    for name, constant in packed.constants.items():
        if constant is not None:
            require_shape(name, constant, (packed.layout.tokens,), "logprobs")
            require_floating(name, constant)
    _check_needs(loss, packed.constants)
    _check_advantages(loss, packed)
    _check_staleness(loss, packed)
    _check_chosen(loss, packed)
    _check_taught(loss, packed)
    if isinstance(loss.objective, Dppo) and loss.objective.needs_top_k:
        _check_top_k(loss.objective, packed)
    _check_numbers(loss, packed)


def _cut(value: Tensor | TopK | Taught | None, piece: slice) -> Tensor | TopK | Taught | None:
    if isinstance(value, Taught):
        return value.part(piece)
    if not isinstance(value, TopK):
        return None if value is None else value[piece]
    return replace(
        value,
        logprobs_TK=value.logprobs_TK[piece],
        rollout_logprobs_TK=value.rollout_logprobs_TK[piece],
        sampled_TK=value.sampled_TK[piece],
    )


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


def _check_advantages(loss: LossSpec, packed: Packed) -> None:
    require_floating("advantages", packed.advantages)
    tokens, sequences = packed.layout.tokens, packed.layout.sequences
    if tuple(packed.advantages.shape) not in ((sequences,), (tokens,)):
        raise ValueError(
            f"advantages: got shape {list(packed.advantages.shape)}, needs [{sequences}], one for each "
            f"sequence, or [{tokens}], one for each token"
        )
    if not packed.has_one_advantage_per_sequence and loss.objective.one_advantage_per_sequence:
        raise ValueError(
            f"advantages: got one for each of {tokens} tokens, {loss.objective.kind} needs [{sequences}], "
            "one for each sequence; gspo_token takes one for each token"
        )


def _check_staleness(loss: LossSpec, packed: Packed) -> None:
    if packed.staleness is not None:
        require_shape("staleness", packed.staleness, (packed.layout.tokens,), "mask")
    elif loss.max_staleness is not None:
        raise ValueError(
            f"staleness: got None, max_staleness {loss.max_staleness} needs the age of each token"
        )


def _check_chosen(loss: LossSpec, packed: Packed) -> None:
    """Require `selected` and `held` where a part of the loss reads them, and refuse them elsewhere."""
    readers: dict[str, dict[str, object]] = {
        "selected": {"top_entropy": loss.top_entropy, "clip_cov": loss.clip_cov},
        "held": {"kl_cov": loss.kl_cov},
    }
    for name, parts in readers.items():
        chosen_T, reading = getattr(packed, name), [part for part, spec in parts.items() if spec is not None]
        if chosen_T is None and reading:
            raise ValueError(f"{name}: got None, {' and '.join(reading)} needs the tokens that it chooses")
        if chosen_T is not None and not reading:
            raise ValueError(
                f"{name}: got a mask, and the loss has no {' or '.join(parts)} that would read it"
            )
        if chosen_T is not None:
            require_shape(name, chosen_T, (packed.layout.tokens,), "mask")


def _check_taught(loss: LossSpec, packed: Packed) -> None:
    if packed.taught is None:
        return
    if loss.distillation is None:
        raise ValueError("taught: got a teacher's logprobs, and the loss has no distillation to read them")
    wanted, top = loss.distillation.resolved_top_k, packed.taught.top
    if (top is not None) != (wanted > 0):
        raise ValueError(
            f"taught.top: got {'none' if top is None else 'one'}, and distillation of the kind "
            f"{loss.distillation.kind} needs {'one' if wanted else 'none'}"
        )
    if top is None:
        return
    require_floating("taught.top.logprobs_TK", top.logprobs_TK)
    require_floating("taught.top.teacher_logprobs_TK", top.teacher_logprobs_TK)
    shape = (packed.layout.tokens, wanted)
    for name in ("logprobs_TK", "teacher_logprobs_TK", "sampled_TK"):
        require_shape(f"taught.top.{name}", getattr(top, name), shape, "tokens and distillation.top_k")


def _check_numbers(loss: LossSpec, packed: Packed) -> None:
    """Check ages, masks of chosen tokens and router shifts, with one copy to the host."""
    wrong: dict[str, Tensor] = {}
    if packed.staleness is not None:
        wrong["staleness"] = (packed.mask & (packed.staleness < 0)).any()
    for name in ("selected", "held"):
        chosen_T: Tensor | None = getattr(packed, name)
        if chosen_T is not None and chosen_T.dtype != torch.bool:
            wrong[name] = ~zeros_and_ones(chosen_T)
    if isinstance(loss.objective, Rspo):
        wrong["router_shift"] = _outside_unit(packed).any()
    if not wrong:
        return
    for name, is_wrong in zip(wrong, torch.stack(list(wrong.values())).tolist(), strict=True):
        if is_wrong:
            _refuse_numbers(name, packed)


def _refuse_numbers(name: str, packed: Packed) -> NoReturn:
    if name == "staleness" and packed.staleness is not None:
        raise ValueError(
            f"staleness: got {int(packed.staleness.min())}, needs ages of 0 or more policy versions"
        )
    if name == "router_shift" and packed.router_shift is not None:
        got = packed.router_shift[_outside_unit(packed)][:4].tolist()
        raise ValueError(f"router_shift: got {got}, needs numbers in (0, 1]")
    refuse_mask(name)


def _outside_unit(packed: Packed) -> Tensor:
    """[T] bool: where the router shift is no number in (0, 1]."""
    shift_T = packed.router_shift
    assert shift_T is not None, "_check_needs sees to it"
    return packed.mask & ~((shift_T > 0) & (shift_T <= 1))


def _check_top_k(objective: Dppo, packed: Packed) -> None:
    top_k, tokens = packed.top_k, packed.layout.tokens
    if top_k is None:
        raise ValueError(
            f"top_k: got None, dppo with the divergence {objective.divergence} needs the logprobs of the "
            "rollout's top K tokens; binary_tv does without"
        )
    shape = tuple(top_k.logprobs_TK.shape)
    if len(shape) != 2 or shape[0] != tokens:
        raise ValueError(f"top_k.logprobs_TK: got shape {list(shape)}, needs [{tokens}, K]")
    require_shape("top_k.rollout_logprobs_TK", top_k.rollout_logprobs_TK, shape, "top_k.logprobs_TK")
    require_shape("top_k.sampled_TK", top_k.sampled_TK, shape, "top_k.logprobs_TK")
