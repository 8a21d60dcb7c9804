"""The plugin that vLLM loads in each of its processes: it registers our weight transfer, and ends a worker
process together with its parent."""

import multiprocessing

from slipstream.processes.lifetime.parent_death import die_with_parent

TRANSFER_BACKEND = "slipstream"


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    # vLLM has no public way to look a name up, and registering a name twice raises ValueError.
    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER_BACKEND, "slipstream.rollout.weight_receiver", "WeightReceiver"
        )
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)
