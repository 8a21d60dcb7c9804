"""What this process has of its machine: CPU cores, with the quota of its container, and ranks beside it."""

import math
import os
import sys
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(cpu_max: Path = CPU_MAX) -> int:
    """Return the number of cores in the affinity mask, or the cgroup (v2) quota if less; at least 1.

    Elsewhere than on Linux, that of all cores of the machine.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.floor(int(quota) / int(period))))


def local_ranks() -> int:
    """Return the number of ranks on this machine, which torchrun sets; 1 without a number."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "").strip()
    return max(1, int(ranks)) if ranks.isdecimal() else 1
