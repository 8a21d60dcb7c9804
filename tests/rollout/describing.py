"""What tests ask in each process of an engine."""

import torch
from slipstream.rollout import worker_extension
from slipstream.rollout.in_place import fingerprints


class WorkerExtension(worker_extension.WorkerExtension):
    """Also describes the weights."""

    def fingerprints(self) -> dict[str, int]:
        """Return a checksum of each tensor of the model."""
        with torch.inference_mode():
            return fingerprints(self.weight_transfer_engine.model)

    def forgive(self) -> str:
        """Have deltas written in place again; return why none was."""
        reason, self.weight_transfer_engine._writer.refusal = self.refusal(), ""
        return reason

    def refusal(self) -> str:
        """Return why no delta is written in place."""
        return str(self.weight_transfer_engine._writer.refusal)
