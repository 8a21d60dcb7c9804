"""The arguments that vLLM is started with; on the nodes of an engine only the node rank differs."""

import os
from math import ceil
from pathlib import Path
from typing import Any

from slipstream.config import RolloutConfig, RunConfig
from slipstream.cuda import require_cuda
from slipstream.rollout.adapter import ServedAdapter
from slipstream.rollout.node_rank import NodeRank, check_node_rank
from slipstream.rollout.plugin import TRANSFER_BACKEND, register
from slipstream.tokens import served_context

GIB = 1024**3
WORKER_EXTENSION = "slipstream.rollout.worker_extension.WorkerExtension"
LEAST_LOGPROBS = 20
"""Least limit on the top logprobs of a request: the default of vLLM. The objective may need a higher one."""
CPU_BLOCK_SIZE = 32  # the CPU kernels need multiples of 32; small blocks share more of a short prefix


def prepare_arguments(
    config: RunConfig, model_dir: Path, *, adapter: ServedAdapter | None = None, node: NodeRank | None = None
) -> Any:
    """Set the environment variables of vLLM in this process and return its AsyncEngineArgs.

    Errors: ValueError if this vLLM or this machine lacks what the configuration needs, or for a node rank
    that does not fit `rollout.nodes`.
    """
    rollout = config.rollout
    check_node_rank(node, nodes=rollout.nodes)
    on_gpu = set_environment(rollout)
    register()
    if config.learner.replay_experts:
        _require_model_runner_v2()
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    return AsyncEngineArgs(
        model=str(model_dir),
        dtype=config.model.dtype,
        hf_overrides={"head_dtype": rollout.head_dtype},
        seed=config.seed,
        logprobs_mode="processed_logprobs",
        max_logprobs=max(LEAST_LOGPROBS, config.algorithm.resolved_top_logprobs()),
        generation_config="vllm",
        max_model_len=served_context(config, model_dir),
        weight_transfer_config=WeightTransferConfig(backend=TRANSFER_BACKEND),
        worker_extension_cls=WORKER_EXTENSION,
        disable_log_stats=True,
        enable_return_routed_experts=config.learner.replay_experts,
        tensor_parallel_size=rollout.tensor_parallel,
        **_memory(rollout, on_gpu=on_gpu),
        **({} if adapter is None else adapter.engine_arguments()),
        **({} if node is None else _multi_node(node, nodes=rollout.nodes)),
        **{**_defaults(rollout, on_gpu=on_gpu), **rollout.vllm.model_dump()},
    )


def set_environment(rollout: RolloutConfig) -> bool:
    """Set the options that vLLM reads only from environment variables; return whether there is a GPU.

    Errors: ValueError if rollout.device is cuda and there is no GPU.
    """
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(ceil(rollout.start_timeout_seconds)))
    import torch

    if rollout.device == "cuda":
        require_cuda("rollout.device")
    if torch.cuda.is_available():
        return True
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling with g++ delays the first request by 15 s
    os.environ["OMP_NUM_THREADS"] = str(rollout.threads)
    return False


def _memory(rollout: RolloutConfig, *, on_gpu: bool) -> dict[str, Any]:
    if on_gpu:
        return {"gpu_memory_utilization": rollout.gpu_memory_utilization}
    return {"kv_cache_memory_bytes": int(rollout.kv_cache_gib * GIB)}


def _defaults(rollout: RolloutConfig, *, on_gpu: bool) -> dict[str, Any]:
    """Return options that rollout.vllm may override."""
    shared = {
        "enable_prefix_caching": True,
        "max_num_seqs": rollout.max_groups * rollout.group_size,
    }
    return shared if on_gpu else {**shared, "enforce_eager": True, "block_size": CPU_BLOCK_SIZE}


def _multi_node(node: NodeRank, *, nodes: int) -> dict[str, Any]:
    """Return the options of vLLM's multiprocessing executor over several nodes, which needs no Ray."""
    return {
        "nnodes": nodes,
        "node_rank": node.rank,
        "master_addr": node.master_addr,
        "master_port": node.master_port,
        "distributed_executor_backend": "mp",
    }


def _require_model_runner_v2() -> None:
    """Raise ValueError unless vLLM can return the experts that it chose."""
    from vllm.triton_utils import HAS_TRITON

    if not HAS_TRITON:
        raise ValueError(
            "learner.replay_experts is on, but only vLLM's model runner V2 returns the chosen experts, and "
            "that needs Triton: use a GPU or a CPU build of vLLM with triton-cpu, or set "
            "learner.replay_experts to false"
        )
