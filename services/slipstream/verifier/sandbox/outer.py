"""The outer walls: what holds for the whole pod, and is only found here, not built."""

from pathlib import Path

KERNEL_VERSION = Path("/proc/version")
MEMORY_MAX = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
UNBOUNDED_BYTES = 1 << 60


def cgroup_missing(files: tuple[Path, ...] = MEMORY_MAX) -> str:
    """Why the memory of this pod is not bounded, or nothing when it is."""
    for file in files:
        try:
            bound = file.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if bound.isdigit() and int(bound) < UNBOUNDED_BYTES:
            return ""
    return "no memory limit for this process in its cgroup; the bound is one program's memory a server"


def gvisor_missing(file: Path = KERNEL_VERSION) -> str:
    """Why the kernel is not gVisor's, or nothing when it is."""
    try:
        version = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        version = ""
    return "" if "gvisor" in version.lower() else "the pod runs on the node's own kernel"
