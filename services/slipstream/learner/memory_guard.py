"""Refuses models that do not fit into memory, before a load fails halfway."""

import os
from pathlib import Path
from typing import Final

import torch

from slipstream.config import RunConfig
from slipstream.config.learner_memory import LearnerMemory, learner_memory, models_beside
from slipstream.hub.safetensors_header import model_size
from slipstream.processes.cores import local_ranks

GIB: Final = 2**30
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def check_memory(config: RunConfig, device: torch.device, *, ranks: int) -> None:
    """Check that the models of a run fit into the memory of this rank's device.

    That is its GPU; on CPUs, the memory of the machine, which all of its ranks share. Nothing is checked if
    there are no safetensors files, from which sizes are read. Errors: ValueError.
    """
    sizes = [model_size(path) if path else None for path in _directories(config)]
    policy, reference, critic = sizes
    if policy is None:
        return
    need = learner_memory(config, policy, ranks=ranks, reference=reference, critic=critic)
    needed, available, where = _on_gpu(need, device) if device.type == "cuda" else _on_cpu(need)
    if needed > available:
        raise ValueError(
            f"the learner needs at least {need.rank_bytes / GIB:.1f} GiB on each of its {ranks} ranks before "
            f"activations ({_parts(need)}), and {where} {available / GIB:.1f} GiB; raise learner.ranks, "
            "train adapters (learner.lora), or leave out the models beside the policy (algorithm.kl, "
            "learner.critic)"
        )


def _directories(config: RunConfig) -> tuple[Path, Path | None, Path | None]:
    model = config.model.directory()
    return (model, *models_beside(config, model))


def _parts(need: LearnerMemory) -> str:
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in need.rank.items() if size)


def _on_gpu(need: LearnerMemory, device: torch.device) -> tuple[int, int, str]:
    """Return the bytes that one rank needs, the bytes of its GPU, and the words before them in a message."""
    return (
        need.rank_bytes,
        torch.cuda.get_device_properties(device).total_memory,
        f"GPU {device.index or 0} has",
    )


def _on_cpu(need: LearnerMemory) -> tuple[int, int, str]:
    """Return the same for all ranks of this machine together, with the weights that they publish."""
    rank_count = local_ranks()
    first = os.environ.get("GROUP_RANK", "0") == "0"  # torchrun sets it
    published = need.published_on(rank_count, first=first)
    total = rank_count * need.rank_bytes + published
    beside = f" and {published / GIB:.1f} GiB for the weights that they publish" if published else ""
    ranks = "1 rank" if rank_count == 1 else f"{rank_count} ranks"
    return total, _memory_bytes(), f"this machine, with {ranks}{beside}, has"


def _memory_bytes() -> int:
    """Return the memory of this machine, or the limit of its container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or "max"
        return machine
