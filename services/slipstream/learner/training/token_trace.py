"""Collects what a step makes of each token, row by row, for the stored completions of the run.

Shape suffix: T sampled tokens of a row.
"""

from typing import Any

import numpy.typing as npt
import torch

from slipstream.algorithms.loss import PolicyLoss
from slipstream.learner.batches.rows import Row
from slipstream.learner.policy.logprobs import Selected
from slipstream.learner.ranks.ranks import Ranks
from slipstream.learner.training.minibatch import RowConstants, RowTargets, per_token_advantages
from slipstream.samples.token_values import TokenValues

TYPES = (torch.int32, torch.int32, *[torch.float32] * 4, torch.int8, torch.bool)


class TokenTrace:
    """The values of the tokens of one batch on one rank."""

    def __init__(self) -> None:
        self._rows: list[tuple[torch.Tensor, ...]] = []
        self._references: list[torch.Tensor] = []

    def add(
        self,
        row: Row,
        constants: RowConstants,
        targets: RowTargets,
        now: Selected,
        loss: PolicyLoss,
        trained_T: torch.Tensor,
    ) -> None:
        """Add a row. Its tensors stay on the device, so that the host does not wait for each row."""
        if not row.layout.counted:
            return  # an empty row
        self._rows.append(
            (
                row.places_B[row.sequence_ids_T],
                row.order_T,
                now.logprobs_T.detach(),
                now.entropy_T.detach(),
                per_token_advantages(targets.advantages, row),
                loss.gates_T,
                loss.sides_T,
                trained_T,
            )
        )
        if constants.ref_T is not None:
            self._references.append(constants.ref_T)

    def gathered(self, ranks: Ranks) -> TokenValues:
        """Return the values of the tokens of all ranks. All ranks must call."""
        parts = [[row[index] for row in self._rows] for index in range(len(TYPES))]
        values = [_gathered(part, dtype, ranks) for part, dtype in zip(parts, TYPES, strict=True)]
        places_N, order_N, logprobs_N, entropies_N, advantages_N, gates_N, sides_N, trained_N = values
        references_N = _gathered(self._references, torch.float32, ranks)
        return TokenValues(
            completion_N=places_N,
            order_N=order_N,
            logprobs_N=logprobs_N,
            reference_N=references_N if references_N.shape == logprobs_N.shape else None,
            entropies_N=entropies_N,
            advantages_N=advantages_N,
            gates_N=gates_N,
            sides_N=sides_N,
            trained_N=trained_N,
        )


def _gathered(tensors: list[torch.Tensor], dtype: torch.dtype, ranks: Ranks) -> npt.NDArray[Any]:
    own = torch.cat([tensor.to(dtype) for tensor in tensors]) if tensors else torch.zeros(0, dtype=dtype)
    values: npt.NDArray[Any] = ranks.gather(own.cpu()).numpy()
    return values
