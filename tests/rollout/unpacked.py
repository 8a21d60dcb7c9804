"""An engine on a CPU whose layers compute with their parameters, as on a GPU, and not with packed copies.

vLLM imports a worker extension in each process of the engine before it loads the model. Experts are not
packed either, for which there is no kernel: they compute with the wrong numbers.
"""

import vllm._custom_ops
import vllm.model_executor.layers.fused_moe.experts.cpu_moe
from rollout.describing import WorkerExtension

__all__ = ["WorkerExtension"]

vllm._custom_ops._supports_onednn = False
vllm.model_executor.layers.fused_moe.experts.cpu_moe.cpu_prepack_moe_weight = lambda weight, _isa: weight
