"""Sharding of rows over ranks: each rank takes equally many rows of a minibatch."""

from collections.abc import Sequence
from typing import Final

import torch

from slipstream.config import LearnerConfig
from slipstream.learner.batches import batch, packing
from slipstream.learner.batches.rows import Row, empty_row, make_row
from slipstream.learner.ranks.ranks import Ranks

ENOUGH_TOKENS: Final = 512
"""Tokens of a row on a CPU. Attention there computes all pairs of tokens of a row, and masks pairs of
different sequences; longer rows make nothing else faster."""


class RowSharding:
    """Packs a minibatch identically on every rank, and returns the rows of its own rank.

    Invariant: no sequence is on two ranks, and all ranks have the same number of rows. Empty rows fill up,
    because each forward and backward pass is a collective.
    """

    def __init__(
        self,
        config: LearnerConfig,
        device: torch.device,
        ranks: Ranks,
        *,
        top_k: int | None = None,
        rollout_top_k: int = 0,
    ) -> None:
        """Take the number of likeliest tokens at each position.

        top_k: of the teacher; None without a teacher. rollout_top_k: of the rollout, read by the objective.
        """
        self._config = config
        self._device = device
        self._ranks = ranks
        self._top_k = top_k
        self._rollout_top_k = rollout_top_k

    def rows(self, sequences: Sequence[batch.TrainingSequence]) -> list[Row]:
        """Return the rows of this rank; no sequence may be longer than a row."""
        totals = batch.sampled_tokens(sequences)
        packed = packing.pack(
            sequences,
            max_tokens=self._config.max_tokens_per_row,
            share_prompts=self._config.share_prompts,
            ranks=self._ranks.size,
            enough=ENOUGH_TOKENS if self._device.type == "cpu" else None,
        )
        own = packed[self._ranks.rank :: self._ranks.size]
        return [
            make_row(
                row,
                totals,
                self._device,
                share_prompts=self._config.share_prompts,
                rollout_top=self._rollout_top_k > 0,
            )
            if row
            else empty_row(self._device, top_k=self._top_k, rollout_top_k=self._rollout_top_k)
            for row in own
        ]
