"""The tensors of one packed microbatch, as callers pass them, cut into parts of whole sequences.

Suffixes: _T packed tokens, _B sequences, _K tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from torch import Tensor

from slipstream.algorithms.layout import Layout, Piece

Record = TypeVar("Record", bound=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK:
    """Logprobs of mu's K likeliest tokens at each position, for the top-K divergences of DPPO."""

    logprobs_TK: Tensor
    """Under the current policy, nats."""
    rollout_logprobs_TK: Tensor
    """Under the policy that sampled, nats."""
    sampled_TK: Tensor
    """Bool: which of them is the sampled token; none in a row where it is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherTop:
    """The teacher's K likeliest tokens at each position."""

    logprobs_TK: Tensor
    """Under the current policy, nats, with gradient."""
    teacher_logprobs_TK: Tensor
    """Under the teacher, nats."""
    sampled_TK: Tensor
    """Bool: which of them is the sampled token; none in a row where it is not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taught:
    """The teacher's logprobs of the sampled tokens of a microbatch."""

    logprobs_T: Tensor
    """Logprob of the sampled token under the teacher, nats."""
    top: TeacherTop | None = None
    """The teacher's likeliest tokens, for a divergence; None for the kind `advantage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """What a loss reads of the tokens and sequences of one packed row; None where the loss does not read it.

    Outside the mask the numbers may be anything, NaN included.
    """

    layout: Layout
    logprobs_T: Tensor
    """Under the current policy, nats."""
    rollout_logprobs_T: Tensor | None = None
    """Under mu, the policy that sampled, nats."""
    old_logprobs_T: Tensor | None = None
    """Under prox, the policy before the first update of the step, nats."""
    ref_logprobs_T: Tensor | None = None
    """Under the reference, nats."""
    advantages: Tensor
    """[B], or [T] where they differ within a sequence."""
    staleness_T: Tensor | None = None
    """Policy versions."""
    entropy_T: Tensor | None = None
    """Entropy of the current policy at each position, nats."""
    selected_T: Tensor | None = None
    """0 or 1: the tokens that top_entropy and clip_cov let train."""
    held_T: Tensor | None = None
    """0 or 1: the tokens that kl_cov holds near the anchor."""
    router_shift_T: Tensor | None = None
    """exp(-mean |log router_new - log router_old|), in (0, 1], for RSPO."""
    top_k: TopK | None = None
    taught: Taught | None = None

    @property
    def mask_T(self) -> Tensor:
        """Bool: the tokens that count in the loss, those over age included, whose weight is 0."""
        return self.layout.mask_T

    @property
    def sequence_ids_T(self) -> Tensor:
        """0, ..., B - 1 in order."""
        return self.layout.sequence_ids_T

    @property
    def has_one_advantage_per_sequence(self) -> bool:
        """The advantages are [B], not [T]."""
        return self.advantages.shape[0] == self.layout.sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some whole sequences of a microbatch as one of their own, and their position in the whole one."""

    microbatch: Microbatch
    tokens: slice
    sequences: slice


def parts(microbatch: Microbatch) -> Iterator[Part]:
    """Cut a checked microbatch into the parts of its layout; one at least."""
    for piece in microbatch.layout.pieces():
        yield Part(
            microbatch=microbatch if piece.layout is microbatch.layout else _cut(microbatch, piece),
            tokens=piece.tokens,
            sequences=piece.sequences,
        )


def map_tensors(record: Record, function: Callable[[str, Tensor], Tensor]) -> Record:
    """Return a dataclass with function(name, tensor) in the place of each tensor, also in its dataclasses."""

    def mapped(name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(name, value)
        return map_tensors(value, function) if isinstance(value, TopK | TeacherTop | Taught) else value

    return replace(record, **{f.name: mapped(f.name, getattr(record, f.name)) for f in fields(record)})


def _cut(microbatch: Microbatch, piece: Piece) -> Microbatch:
    cut = map_tensors(microbatch, lambda _, value_T: value_T[piece.tokens])
    by = piece.sequences if microbatch.has_one_advantage_per_sequence else piece.tokens
    return replace(cut, layout=piece.layout, advantages=microbatch.advantages[by])
