"""A stored batch as the tensors that the losses read.

Suffixes: _T tokens of the batch, _B sequences (segments of completions).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slipstream.algorithms import Counts
from slipstream.samples.reader import Row


class NotStored(ValueError):
    """The step has no tokens that a loss can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The sampled tokens of a step. Each segment of a completion is a sequence."""

    step: int
    logprobs_T: Tensor
    """Of the policy that the step trained, before its update, nats."""
    rollout_logprobs_T: Tensor
    reference_logprobs_T: Tensor | None
    """None if some of the completions have none."""
    entropies_T: Tensor
    advantages_T: Tensor
    staleness_T: Tensor
    """In policy versions."""
    sequence_ids_T: Tensor
    group_ids_B: Tensor
    completion_ids_B: Tensor
    """Segments of one completion share it."""

    @property
    def completions(self) -> int:
        """Number of stored completions that trained."""
        return len(self.completion_ids_B.unique())

    @property
    def counts(self) -> Counts:
        """The counts by which a loss is divided; a completion of several segments counts once."""
        return Counts(
            tokens=self.tokens,
            sequences=self.completions,
            prompts=len(self.group_ids_B.unique()),
            prompt_tokens_B=self._tokens_of(self.group_ids_B),
            completion_tokens_B=self._tokens_of(self.completion_ids_B),
        )

    def _tokens_of(self, ids_B: Tensor) -> Tensor:
        """Return for each sequence the tokens of all sequences with its id."""
        return torch.bincount(ids_B[self.sequence_ids_T])[ids_B]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return len(self.logprobs_T)

    @property
    def ratios_T(self) -> Tensor:
        """Ratio of the policy to the rollout of each token, bounded at e^±20."""
        return (self.logprobs_T - self.rollout_logprobs_T).clamp(-20, 20).exp()

    @property
    def advantages_B(self) -> Tensor | None:
        """The advantage of each sequence; None if the tokens of some sequence have several."""
        count = len(self.group_ids_B)
        first_T = torch.ones_like(self.sequence_ids_T, dtype=torch.bool)
        first_T[1:] = self.sequence_ids_T[1:] != self.sequence_ids_T[:-1]
        of_sequence_B = torch.zeros(count, dtype=self.advantages_T.dtype)
        of_sequence_B[self.sequence_ids_T[first_T]] = self.advantages_T[first_T]
        same = torch.allclose(of_sequence_B[self.sequence_ids_T], self.advantages_T, atol=1e-6)
        return of_sequence_B if same else None


def trained_rows(step: int, rows: Sequence[Row]) -> list[Row]:
    """Return the completions that have a token with a loss. Errors: NotStored."""
    trained = [
        row
        for row in rows
        if row["logprobs"] is not None and np.isfinite(np.array(row["logprobs"], float)).any()
    ]
    if not trained:
        raise NotStored(f"no completion that step {step} trained on is stored")
    return trained


def make_batch(step: int, rows: Sequence[Row]) -> Batch:
    """Return the tokens of the rows that trained. Errors: NotStored."""
    trained = trained_rows(step, rows)
    used = [np.isfinite(np.array(row["logprobs"], np.float64)) for row in trained]

    def joined(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
        parts = [np.array(row[name], np.float64)[kept] for row, kept in zip(trained, used, strict=True)]
        return torch.from_numpy(np.concatenate(parts)).to(dtype)

    segments, places = _segments(trained, used)
    groups = [trained[place]["group"] for place in places]
    names = {name: index for index, name in enumerate(dict.fromkeys(groups))}
    has_reference = all(row["reference_logprobs"] is not None for row in trained)
    return Batch(
        step=step,
        logprobs_T=joined("logprobs"),
        rollout_logprobs_T=joined("rollout_logprobs"),
        reference_logprobs_T=joined("reference_logprobs") if has_reference else None,
        entropies_T=joined("entropies"),
        advantages_T=joined("advantages"),
        staleness_T=(step - 1 - joined("versions", torch.int64)).clamp(min=0),
        sequence_ids_T=torch.from_numpy(segments),
        group_ids_B=torch.tensor([names[name] for name in groups]),
        completion_ids_B=torch.tensor(places),
    )


def _segments(rows: Sequence[Row], used: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]]:
    """Return the number of the segment of each used token, and the index of the row of each such segment."""
    numbers, places, following = [], [], 0
    for place, (row, kept) in enumerate(zip(rows, used, strict=True)):
        starts = np.zeros(len(kept), np.int64)
        starts[[start for start in row["segment_starts"] if 0 < start < len(kept)]] = 1
        segment_of_token = np.cumsum(starts)[kept]
        _, dense = np.unique(segment_of_token, return_inverse=True)
        numbers.append(dense + following)
        count = int(dense.max(initial=-1)) + 1
        places += [place] * count
        following += count
    return np.concatenate(numbers), places
