"""The tensors of one packed microbatch as they come in: checked, and cut into parts of whole sequences.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from slipstream.algorithms.checks import (
    count_sequences,
    require_floating,
    require_mask,
    require_shape,
    require_tensor,
)
from slipstream.algorithms.distillation import Taught
from slipstream.algorithms.objectives import TopK
from slipstream.algorithms.spec import ONE_ADVANTAGE_PER_SEQUENCE, Dppo, LossSpec, Rspo, anchor_of

PART: Final = 30_000
"""Tokens of a part, about: so many stay in the cache, and torch leaves up to 32,768 to one thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """The arguments of `policy_loss` that have tokens or sequences, as they came in."""

    logprobs: Tensor
    rollout_logprobs: Tensor | None
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    advantages: Tensor
    mask: Tensor
    sequence_ids: Tensor
    staleness: Tensor | None
    entropy: Tensor | None
    selected: Tensor | None
    held: Tensor | None
    router_shift: Tensor | None
    top_k: TopK | None
    taught: Taught | None = None

    @property
    def constants(self) -> dict[str, Tensor | None]:
        """What is [T] and floating beside the logprobs, by name."""
        names = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "entropy", "router_shift")
        teacher = None if self.taught is None else self.taught.logprobs_T
        return {name: getattr(self, name) for name in names} | {"teacher_logprobs": teacher}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some whole sequences of a microbatch, as a microbatch of their own, and where they are in it."""

    packed: Packed
    tokens: slice
    sequences: slice


def parts(packed: Packed, size: int = PART) -> Iterator[Part]:
    """Cut a checked microbatch into parts of whole sequences, of about size tokens each; one at least."""
    ids_T, tokens = packed.sequence_ids, packed.sequence_ids.shape[0]
    by_sequence = packed.advantages.shape[0] == count_sequences(ids_T)
    start_P = torch.searchsorted(ids_T, ids_T[size::size].contiguous())  # of the sequence that goes on there
    cuts = [*sorted({0, *start_P.tolist()}), tokens]
    for first, last in pairwise(cuts):
        piece = slice(first, last)
        sequences = slice(int(ids_T[first]), int(ids_T[last - 1]) + 1) if tokens else slice(0, 0)
        arguments: dict[str, Any] = {f.name: _cut(getattr(packed, f.name), piece) for f in fields(packed)}
        arguments["sequence_ids"] = ids_T[piece] - sequences.start
        arguments["advantages"] = packed.advantages[sequences if by_sequence else piece]
        yield Part(packed=Packed(**arguments), tokens=piece, sequences=sequences)


def check(loss: LossSpec, packed: Packed) -> None:
    """Raise ValueError, naming the argument, unless the microbatch is whole and has what the loss needs."""
    logprobs, mask = packed.logprobs, packed.mask
    require_tensor("logprobs", logprobs)
    require_tensor("mask", mask)
    require_tensor("advantages", packed.advantages)
    if logprobs.ndim != 1:
        raise ValueError(f"logprobs: got shape {list(logprobs.shape)}, needs packed tokens [T]")
    require_floating("logprobs", logprobs)
    require_shape("mask", mask, tuple(logprobs.shape), "logprobs")
    require_mask("mask", mask)
    require_shape("sequence_ids", packed.sequence_ids, tuple(logprobs.shape), "logprobs")
    for name, constant in packed.constants.items():
        if constant is not None:
            require_shape(name, constant, tuple(logprobs.shape), "logprobs")
            require_floating(name, constant)
    _check_needs(loss, packed.constants)
    _check_advantages(loss, packed)
    _check_staleness(loss, packed)
    _check_chosen(loss, packed)
    _check_taught(loss, packed)
    if isinstance(loss.objective, Rspo):
        _check_router_shift(packed)
    if isinstance(loss.objective, Dppo) and loss.objective.needs_top_k:
        _check_top_k(loss.objective, packed)


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
        "teacher_logprobs": [(loss.distillation is not None, "the distillation")],
        "router_shift": [(isinstance(loss.objective, Rspo), "rspo")],
    }
    for name, needs in reasons.items():
        for needed, by in needs:
            if needed and constants[name] is None:
                raise ValueError(f"{name}: got None, {by} needs them")


def _check_advantages(loss: LossSpec, packed: Packed) -> None:
    require_floating("advantages", packed.advantages)
    tokens, sequences = packed.sequence_ids.shape[0], count_sequences(packed.sequence_ids)
    if tuple(packed.advantages.shape) not in ((sequences,), (tokens,)):
        raise ValueError(
            f"advantages: got shape {list(packed.advantages.shape)}, needs [{sequences}], one for each "
            f"sequence, or [{tokens}], one for each token"
        )
    if packed.advantages.shape[0] != sequences and isinstance(loss.objective, ONE_ADVANTAGE_PER_SEQUENCE):
        raise ValueError(
            f"advantages: got one for each of {tokens} tokens, {loss.objective.kind} needs [{sequences}], "
            "one for each sequence; gspo_token takes one for each token"
        )


def _check_staleness(loss: LossSpec, packed: Packed) -> None:
    if packed.staleness is not None:
        require_shape("staleness", packed.staleness, tuple(packed.mask.shape), "mask")
        if bool((packed.staleness[packed.mask.bool()] < 0).any()):
            raise ValueError(
                f"staleness: got {int(packed.staleness.min())}, needs ages of 0 or more policy versions"
            )
    elif loss.max_staleness is not None:
        raise ValueError(
            f"staleness: got None, max_staleness {loss.max_staleness} needs the age of each token"
        )


def _check_chosen(loss: LossSpec, packed: Packed) -> None:
    """The tokens that statistics of the whole batch choose: given wherever, and only where, they are read."""
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
            require_shape(name, chosen_T, tuple(packed.mask.shape), "mask")
            require_mask(name, chosen_T)


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
    shape = (packed.mask.shape[0], wanted)
    for name in ("logprobs_TK", "teacher_logprobs_TK", "sampled_TK"):
        require_shape(f"taught.top.{name}", getattr(top, name), shape, "tokens and distillation.top_k")


def _check_router_shift(packed: Packed) -> None:
    shift_T = packed.router_shift
    assert shift_T is not None, "_check_needs sees to it"
    outside_T = packed.mask.bool() & ~((shift_T > 0) & (shift_T <= 1))
    if bool(outside_T.any()):
        raise ValueError(f"router_shift: got {shift_T[outside_T][:4].tolist()}, needs numbers in (0, 1]")


def _check_top_k(objective: Dppo, packed: Packed) -> None:
    top_k, tokens = packed.top_k, packed.mask.shape[0]
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
