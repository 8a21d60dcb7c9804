"""Time and peak memory of a call in a separate process."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""What seconds are of: the wall's, or the CPU time of all threads, which other work on the machine leaves as
it is; one thread has about as much of both on a quiet machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one call."""

    seconds: float
    peak_bytes: int
    """Most memory at one time beyond what there was before the call: resident in the process on a CPU,
    allocated by torch on a GPU."""


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of the function in a new process, whose memory has nothing of earlier calls."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def cost_of(call: Callable[[], object], device: torch.device, clock: str = "wall") -> Cost:
    """Run the call once. Errors: OSError on a CPU whose system is not Linux."""
    before = _begin(device)
    began = CLOCKS[clock]()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = CLOCKS[clock]() - began
    return Cost(seconds=seconds, peak_bytes=_peak(device) - before)


def _begin(device: torch.device) -> int:
    """Forget the peak so far; returns the bytes in use."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _resident("VmRSS")


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else _resident("VmHWM")


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(kilobytes)
