"""An engine on a CPU whose layers compute with their parameters, as on a GPU, and not with packed copies.

vLLM imports a worker extension in each process of the engine before it loads the model.
"""

import vllm._custom_ops
from slipstream.rollout.worker_extension import WorkerExtension as WorkerExtension

EXTENSION = f"{__name__}.WorkerExtension"

vllm._custom_ops._supports_onednn = False
