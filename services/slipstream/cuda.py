"""Checks that CUDA works where a run requests it, instead of a silent fallback to the CPU."""

from collections.abc import Callable, Mapping
from typing import Final

COUNTS: Final[Mapping[str, str]] = {
    "learner.device": "learner.gpu.count",
    "rollout.device": "gpu.count of the rollout's pool",
    "teacher.device": "teacher.gpu.count",
    "verifier.device": "verifier.gpu.count",
}
"""Key of a run that requests CUDA → the chart's value that sets the key."""


def require_cuda(key: str) -> None:
    """Errors: ValueError with `key`, the reason why no GPU can be used, and the remedy."""
    import torch

    if torch.cuda.is_available():
        return
    build = f"torch {torch.__version__}"
    reason = why_not(build, cuda=torch.version.cuda or torch.version.hip, start=torch.cuda.init)
    of_chart = f", and {COUNTS[key]} of the chart to 0" if key in COUNTS else ""
    raise ValueError(
        f"{key} is cuda, and no GPU can be used: {reason}. `nvidia-smi` on this machine shows its GPUs and "
        "its driver, which CUDA 13 needs at 580 or newer; in a cluster the device plugin and the pod's "
        f"runtimeClassName hand GPUs to the pod. To compute on CPUs, set {key} to auto{of_chart}"
    )


def why_not(build: str, *, cuda: str | None, start: Callable[[], None]) -> str:
    """Return why torch built for `cuda` finds no GPU. `start` initializes CUDA and raises the reason."""
    if cuda is None:
        return f"{build} is a build without CUDA"
    try:
        start()
    except (RuntimeError, AssertionError) as error:
        return f"{build} for CUDA {cuda} says: {str(error).partition('. ')[0].strip().rstrip('.')}"
    return f"{build} for CUDA {cuda} finds none"
