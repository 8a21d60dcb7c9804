"""An engine on a CPU whose layers compute with their parameters, as on a GPU, and not with packed copies.

vLLM imports a worker extension in each process of the engine before it loads the model. Experts are not
packed either, for which there is no kernel: they compute with the wrong numbers.
"""

import torch
import vllm._custom_ops
import vllm.model_executor.layers.fused_moe.experts.cpu_moe
from slipstream.rollout import worker_extension
from slipstream.rollout.in_place import fingerprints

vllm._custom_ops._supports_onednn = False
vllm.model_executor.layers.fused_moe.experts.cpu_moe.cpu_prepack_moe_weight = lambda weight, _isa: weight


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
