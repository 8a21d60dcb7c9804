"""vLLM's worker, on a CPU with layers that compute with their parameters, as on a GPU.

vLLM computes with packed copies of the weights on processors for which it has such kernels, and every delta
is loaded in full there. vLLM imports a worker extension in each process of the engine before it loads the
model.
"""

import vllm._custom_ops
import vllm.model_executor.layers.utils
from slipstream.rollout.worker_extension import WorkerExtension

__all__ = ["WorkerExtension"]

assert hasattr(vllm._custom_ops, "_supports_onednn"), "vLLM has renamed what is switched off here"
assert hasattr(vllm.model_executor.layers.utils, "check_cpu_sgl_kernel"), "the same"
vllm._custom_ops._supports_onednn = False
vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False
