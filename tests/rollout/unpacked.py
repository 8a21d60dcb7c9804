"""An engine on a CPU whose parameters are not packed, as in benchmarks/unpacked.py.

Experts are not packed either, for which there is no kernel: they compute with the wrong numbers.
"""

import torch
import vllm.model_executor.layers.fused_moe.experts.cpu_moe
from slipstream.rollout.in_place import fingerprints

from benchmarks import unpacked

vllm.model_executor.layers.fused_moe.experts.cpu_moe.cpu_prepack_moe_weight = lambda weight, _isa: weight


class WorkerExtension(unpacked.WorkerExtension):
    """Also describes the weights."""

    def fingerprints(self) -> dict[str, int]:
        """Return a checksum of each tensor of the model."""
        with torch.inference_mode():
            return fingerprints(self.weight_transfer_engine.model)

    def refusal(self) -> str:
        """Return why no delta is written in place."""
        return str(self.weight_transfer_engine._writer.refusal)
