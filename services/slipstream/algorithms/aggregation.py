"""The weight of each token in the loss, normalised by counts of the whole optimizer batch.

Suffixes: _T packed tokens, _B sequences.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.algorithms.checks import (
    count_sequences,
    require_integers,
    require_mask,
    require_shape,
)
from slipstream.algorithms.segments import segment_sum
from slipstream.algorithms.spec import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a loss is divided by: counts over every rank and microbatch of one optimizer batch.

    Taken over the data mask, before any algorithm masks tokens: clipping and age never change them. Only
    sequences and prompts with a token in the mask count. Tokens and sequences add up over microbatches;
    prompts do only where no group is split over two.
    """

    tokens: int
    sequences: int
    prompts: int = 0
    prompt_tokens_B: Tensor | None = None
    """Tokens of the whole group of each sequence of this microbatch; prompt_mean needs it."""

    def __post_init__(self) -> None:
        for name in ("tokens", "sequences", "prompts"):
            if getattr(self, name) < 0:
                raise ValueError(f"counts.{name}: got {getattr(self, name)}, needs 0 or more")


def count(mask: Tensor, sequence_ids: Tensor, group_ids: Tensor | None = None) -> Counts:
    """Count a whole batch: mask [T] of 0 and 1, sequence_ids [T], group_ids [B] of its prompts.

    Without group_ids the prompts are left at 0. Raises ValueError for mismatched shapes or unordered ids.
    """
    length_B = _lengths(mask, sequence_ids)
    tokens, sequences = int(length_B.sum()), int((length_B > 0).sum())
    if group_ids is None:
        return Counts(tokens=tokens, sequences=sequences)
    require_shape("group_ids", group_ids, tuple(length_B.shape), "the sequences of sequence_ids")
    require_integers("group_ids", group_ids)
    name_S, group_B = torch.unique(group_ids, return_inverse=True)
    prompt_S = segment_sum(length_B, group_B, name_S.shape[0])
    return Counts(
        tokens=tokens,
        sequences=sequences,
        prompts=int((prompt_S > 0).sum()),
        prompt_tokens_B=prompt_S[group_B],
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
    length_B = _lengths(mask, sequence_ids)
    whole = count(mask, sequence_ids, group_ids) if counts is None else counts
    weight_B = (1 / _divisor(spec, length_B, whole).clamp(min=1)).to(dtype)
    return weight_B[sequence_ids] * mask.to(dtype)


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
    require_shape("counts.prompt_tokens_B", counts.prompt_tokens_B, tuple(length_B.shape), "the sequences")
    return counts.prompt_tokens_B.to(length_B)


def _lengths(mask: Tensor, sequence_ids: Tensor) -> Tensor:
    require_shape("sequence_ids", sequence_ids, tuple(mask.shape), "mask")
    require_mask("mask", mask)
    ones_T = mask.to(torch.float32)  # exact up to 16 million tokens of one sequence
    return segment_sum(ones_T, sequence_ids, count_sequences(sequence_ids)).double()
