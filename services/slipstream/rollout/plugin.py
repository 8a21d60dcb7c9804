"""Loaded by vLLM in every one of its processes: registers our weight transfer, ties lives together."""

import multiprocessing

from slipstream.processes.lifetime.parent_death import die_with_parent

TRANSFER_BACKEND = "slipstream"


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    # vLLM offers no way to ask; registering a name twice is its ValueError.
    if TRANSFER_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER_BACKEND, "slipstream.rollout.weight_receiver", "WeightReceiver"
        )
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        die_with_parent(parent.pid)
