"""What tests ask in each process of an engine."""

import torch
from slipstream.rollout import worker_extension
from slipstream.rollout.in_place import fingerprints
from slipstream.weights.delta import compile_loops


class WorkerExtension(worker_extension.WorkerExtension):
    """Also describes the weights."""

    def fingerprints(self) -> dict[str, int]:
        """Return a checksum of each tensor of the model."""
        with torch.inference_mode():
            return fingerprints(self.weight_transfer_engine.model)

    def compiles_for_a_delta(self) -> bool:
        """Return whether a delta of the model's weights would have to wait for the compiler."""
        from numba.core.event import install_recorder  # vLLM does not start after an import of numba

        sizes = [parameter.element_size() for parameter in self.weight_transfer_engine.model.parameters()]
        with install_recorder("numba:compile") as compiling:
            compile_loops(sizes)
        return bool(compiling.buffer)

    def forgive(self) -> str:
        """Have deltas written in place again; return why none was."""
        reason, self.weight_transfer_engine._writer.refusal = self.refusal(), ""
        return reason

    def refusal(self) -> str:
        """Return why no delta is written in place."""
        return str(self.weight_transfer_engine._writer.refusal)
