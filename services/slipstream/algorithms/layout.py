"""The sequences and the mask of a packed row, checked once, when the row is built.

Suffixes: _T packed tokens, _B sequences, _P parts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from slipstream.algorithms import checks, ratios, segments

PART: Final = 30_000
"""Tokens of a part, about: they fit into the cache, and torch uses one thread for up to 32,768 elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The position at which a part of a row begins. A part is some whole sequences, about PART tokens."""

    token: int
    """Index of the first token of the part."""
    sequence: int
    """Index of the first sequence of the part."""
    counted: int
    """Number of tokens in the mask before the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some whole sequences of a row as a row of their own, and their position in the whole row."""

    layout: "Layout"
    tokens: slice
    sequences: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which sequence each token is of, and which tokens are in the mask; `lay_out` builds and checks it.

    Invariant: its tensors are never written to, so its checks stay true.
    """

    sequence_ids_T: Tensor
    """0, ..., B - 1 in order."""
    mask_T: Tensor
    """Bool."""
    lengths_B: Tensor
    """Tokens of each sequence in the mask, float64."""
    sequences: int
    """B."""
    counted: int
    """Tokens in the mask."""
    cuts: tuple[Cut, ...]
    """Where each part begins; the first begins at token 0."""

    @property
    def tokens(self) -> int:
        """T, in the mask or not."""
        return self.mask_T.shape[0]

    @property
    def is_full(self) -> bool:
        """Every token is in the mask."""
        return self.counted == self.tokens

    def keep(self, value_T: Tensor) -> Tensor:
        """Return value_T [T], or [T, K], with 0 outside the mask, so that no NaN passes."""
        return value_T if self.is_full else ratios.keep(value_T, self.mask_T)

    def pieces(self) -> Iterator[Piece]:
        """Cut the row into its parts; one at least."""
        if len(self.cuts) == 1:
            yield Piece(layout=self, tokens=slice(0, self.tokens), sequences=slice(0, self.sequences))
            return
        end = Cut(token=self.tokens, sequence=self.sequences, counted=self.counted)
        for first, after in pairwise((*self.cuts, end)):
            tokens, sequences = slice(first.token, after.token), slice(first.sequence, after.sequence)
            layout = Layout(
                sequence_ids_T=self.sequence_ids_T[tokens] - first.sequence,
                mask_T=self.mask_T[tokens],
                lengths_B=self.lengths_B[sequences],
                sequences=after.sequence - first.sequence,
                counted=after.counted - first.counted,
                cuts=(_BEGIN,),
            )
            yield Piece(layout=layout, tokens=tokens, sequences=sequences)


_BEGIN: Final = Cut(token=0, sequence=0, counted=0)


def lay_out(mask: Tensor, sequence_ids: Tensor, *, part: int = PART) -> Layout:
    """Build the layout of a row: one copy to the host, whatever the row's length.

    mask: [T], 1 or true where the token counts. sequence_ids: [T], 0, ..., B - 1 in order. part: tokens
    of a part, about; a part is some whole sequences.
    Raises ValueError for mismatched shapes, a mask of other numbers than 0 and 1, and unordered ids.
    """
    checks.require_tensor("mask", mask)
    if mask.ndim != 1:
        raise ValueError(f"mask: got shape {list(mask.shape)}, needs packed tokens [T]")
    checks.require_shape("sequence_ids", sequence_ids, tuple(mask.shape), "mask")
    checks.require_sequence_ids(sequence_ids)
    mask_T = mask.bool()
    legal, ordered, last, counted, *starts = _facts(mask, mask_T, sequence_ids, part)
    if not legal:
        checks.refuse_mask("mask")
    if not ordered:
        checks.refuse_sequence_ids(sequence_ids)
    return Layout(
        sequence_ids_T=sequence_ids,
        mask_T=mask_T,
        lengths_B=segments.segment_sum(mask_T.double(), sequence_ids, last + 1),
        sequences=last + 1,
        counted=counted,
        cuts=_cuts(starts),
    )


def _facts(mask: Tensor, mask_T: Tensor, ids_T: Tensor, part: int) -> list[int]:
    """Return the numbers that the host needs, with one copy from the device.

    Whether the mask and the ids are legal, the last id, the number of tokens in the mask. Then of each part
    but the first: its first token; its first sequence; the number of tokens in the mask before it.
    """
    if not mask.numel():
        return [True, True, -1, 0]
    counted_T = mask_T.cumsum(0, dtype=torch.int32)
    heads = (checks.zeros_and_ones(mask), checks.rises_by_one(ids_T), ids_T[-1], counted_T[-1])
    # searchsorted needs ordered ids. For unordered ones it gives any position, and `lay_out` refuses them.
    start_P = torch.searchsorted(ids_T, ids_T[part::part].contiguous()).clamp(max=mask.shape[0] - 1)
    starts = (start_P, ids_T[start_P], counted_T[start_P] - mask_T[start_P].int()) if start_P.numel() else ()
    numbers: list[int] = torch.cat([torch.stack([head.long() for head in heads]), *starts]).tolist()
    return numbers


def _cuts(starts: Sequence[int]) -> tuple[Cut, ...]:
    parts = len(starts) // 3
    columns = (starts[:parts], starts[parts : 2 * parts], starts[2 * parts :])
    later = {Cut(token=t, sequence=s, counted=c) for t, s, c in zip(*columns, strict=True) if t}
    return (_BEGIN, *sorted(later, key=lambda cut: cut.token))
