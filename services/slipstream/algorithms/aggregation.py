"""The weight of each token in the loss, normalised by counts of the whole optimizer batch.

Suffixes: _T packed tokens, _B sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms import checks, segments
from slipstream.algorithms.layout import Layout, lay_out
from slipstream.algorithms.spec import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts over every rank and microbatch of one optimizer batch, by which a loss is divided.

    They are those of the data mask, before an algorithm masks tokens: clipping and age do not change them.
    Only sequences and prompts with a token in the mask count. Tokens add up over microbatches; sequences and
    prompts do only where no completion and no group is split over two.
    """

    tokens: int
    sequences: int
    """A completion of several segments, each a sequence of a row, counts once."""
    prompts: int = 0
    prompt_tokens_B: Tensor | None = None
    """Tokens of the whole group of each sequence of this microbatch; prompt_mean needs it."""
    completion_tokens_B: Tensor | None = None
    """Tokens of the whole completion of each sequence of this microbatch, over all its segments; None where
    each sequence is a completion."""

    def __post_init__(self) -> None:
        for name in ("tokens", "sequences", "prompts"):
            if getattr(self, name) < 0:
                raise ValueError(f"counts.{name}: got {getattr(self, name)}, needs 0 or more")


def count(mask: Tensor, sequence_ids: Tensor, group_ids: Tensor | None = None) -> Counts:
    """Count a whole batch: mask [T] of 0 and 1, sequence_ids [T], group_ids [B] of its prompts.

    Without group_ids the prompts are left at 0. Raises ValueError for mismatched shapes or unordered ids.
    """
    return count_layout(lay_out(mask, sequence_ids), group_ids)


def count_layout(layout: Layout, group_ids: Tensor | None = None) -> Counts:
    """Return `count` of a row that has a layout, with one copy to the host at most."""
    length_B, prompt_tokens_B = layout.lengths_B, None
    filled = [(length_B > 0).sum()]
    if group_ids is not None:
        checks.require_shape("group_ids", group_ids, (layout.sequences,), "the sequences of sequence_ids")
        checks.require_integers("group_ids", group_ids)
        group_B = _numbered(group_ids)
        prompt_S = segments.segment_sum(length_B, group_B, layout.sequences)
        prompt_tokens_B = prompt_S[group_B]
        filled.append((prompt_S > 0).sum())
    sequences, prompts = [*_on_host(filled), 0][:2]
    return Counts(
        tokens=layout.counted, sequences=sequences, prompts=prompts, prompt_tokens_B=prompt_tokens_B
    )


def token_weights(
    spec: Aggregation,
    mask: Tensor,
    sequence_ids: Tensor,
    *,
    group_ids: Tensor | None = None,
    counts: Counts | None = None,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return the weight of each token, [T] of the given dtype; 0 outside the mask.

    counts: those of the whole optimizer batch where this is a part of it; without them, this batch's own.
    Raises ValueError for mismatched shapes, and for prompt_mean without prompt counts.
    """
    layout = lay_out(mask, sequence_ids)
    counts = count_layout(layout, group_ids) if counts is None else counts
    return spread(sequence_weights(spec, layout, counts, dtype=dtype), layout)


def sequence_weights(spec: Aggregation, layout: Layout, counts: Counts, *, dtype: torch.dtype) -> Tensor:
    """Return what each token of a sequence weighs, [B]; counts: those of the whole optimizer batch.

    All segments of a completion together weigh what the completion would weigh as one sequence.
    """
    length_B = layout.lengths_B
    of_completion_B = counts.completion_tokens_B
    if of_completion_B is not None:
        checks.require_shape(
            "counts.completion_tokens_B", of_completion_B, tuple(length_B.shape), "the sequences"
        )
        length_B = of_completion_B.to(length_B)
    return (1 / _divisor(spec, length_B, counts).clamp(min=1)).to(dtype)


def spread(weight_B: Tensor, layout: Layout) -> Tensor:
    """Return the weight of each token, [T]: that of its sequence [B], and 0 outside the mask."""
    weight_T = weight_B[layout.sequence_ids_T]
    return weight_T if layout.is_full else weight_T * layout.mask_T


def _divisor(spec: Aggregation, length_B: Tensor, counts: Counts) -> Tensor:
    if spec.kind == "token_mean":
        return torch.full_like(length_B, counts.tokens)
    if spec.kind == "prompt_mean":
        return counts.prompts * _prompt_tokens(counts, length_B)
    sequences_B = torch.full_like(length_B, counts.sequences)
    if spec.kind == "seq_mean_token_mean":
        return sequences_B * length_B
    if spec.kind == "token_sum_norm":
        assert spec.max_tokens is not None, "Aggregation checks it"
        return sequences_B * spec.max_tokens
    return sequences_B


def _prompt_tokens(counts: Counts, length_B: Tensor) -> Tensor:
    if counts.prompt_tokens_B is None:
        raise ValueError(
            "prompt_mean: got no tokens per prompt, needs group_ids, or counts with prompt_tokens_B where "
            "counts are passed"
        )
    checks.require_shape(
        "counts.prompt_tokens_B", counts.prompt_tokens_B, tuple(length_B.shape), "the sequences"
    )
    return counts.prompt_tokens_B.to(length_B)


def _numbered(group_ids: Tensor) -> Tensor:
    """Return the ids [B] as 0, 1, ... in order of size. Unlike `unique` it does not wait for the device."""
    sorted_B, order_B = group_ids.sort()
    if not sorted_B.numel():
        return order_B
    rises_B = torch.diff(sorted_B, prepend=sorted_B[:1]) != 0
    return torch.empty_like(order_B).scatter_(0, order_B, rises_B.cumsum(0))


def _on_host(counts: Sequence[Tensor]) -> list[int]:
    numbers: list[int] = torch.stack(list(counts)).tolist()
    return numbers
