"""Tensors of which several senders have some rows each, put together in the order in which they arrive."""

from collections.abc import Sequence

import torch

from slipstream.weights.group import TransferError
from slipstream.weights.manifest import TensorSpec


class JoinedTensors:
    """Host memory for the tensors of a version, kept from version to version."""

    def __init__(self) -> None:
        self._memory: dict[str, torch.Tensor] = {}
        self._rows: dict[str, int] = {}
        """Rows of each tensor of this version that have arrived."""

    def begin(self) -> None:
        """Begin a version."""
        self._rows = {}

    def put(self, spec: TensorSpec, arrived: torch.Tensor) -> torch.Tensor:
        """Copy a tensor or a part of one to its place; return the place.

        Errors: TransferError for a part that does not follow the rows before it.
        """
        if spec.part is None:
            self._rows[spec.name] = 0
            place = self._of(spec.name, spec.shape, spec.dtype)
        else:
            name, first = spec.part.tensor, self._rows.get(spec.part.tensor, 0)
            end = first + len(arrived)
            if spec.part.first_row != first or end > spec.part.rows:
                raise TransferError(f"{spec.name}: rows from {first} of {spec.part.rows} were to arrive next")
            self._rows[name] = end
            place = self._of(name, (spec.part.rows, *spec.shape[1:]), spec.dtype)[first:end]
        place.copy_(arrived)
        return place

    def finish(self, specs: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
        """Return the tensors of these parts. Errors: TransferError if rows are missing."""
        incomplete = {
            s.part.tensor for s in specs if s.part and self._rows.get(s.part.tensor, 0) < s.part.rows
        }
        if incomplete:
            raise TransferError(f"rows of {', '.join(sorted(incomplete)[:5])} did not arrive")
        return {name: self._memory[name] for name in self._rows}

    def forget(self) -> None:
        """Give up the memory."""
        self._memory.clear()

    def _of(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return memory for a whole tensor, that of the last version if it has this form."""
        kept = self._memory.get(name)
        if kept is None or kept.shape != torch.Size(shape) or kept.dtype != dtype:
            kept = self._memory[name] = torch.empty(tuple(shape), dtype=dtype)
        return kept
