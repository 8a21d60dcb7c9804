"""Can a checkpoint be written between SIGTERM and the kill, where the time between them is fixed?

`slipstream run` waits as long as a checkpoint grows; Kubernetes waits for the grace period of the pod.
"""

from collections.abc import Mapping
from typing import Final

import torch

from slipstream.learner.checkpoints.shards import whole_bytes

ASSUMED_BYTES_PER_SECOND: Final = 100e6
"""Of a slow volume; until a checkpoint was written nothing better is known."""
WRITTEN_SHARE: Final = 0.5
"""Share of the grace period that writing may take: the step has to end, too, and a volume may be busy."""
MOMENTS: Final = 2


def expected_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Size of a checkpoint after the first step, given those of one now, which may lack moments."""
    size = whole_bytes(tensors)
    if any("optimizer/" in name for name in tensors):
        return size
    trained = {n: t for n, t in tensors.items() if n.startswith(("model/", "critic/module/"))}
    return size + MOMENTS * whole_bytes(trained)


def too_large(size: int, *, stop_seconds: float | None) -> str | None:
    """What is wrong with a grace period before the first checkpoint was written; None when nothing is."""
    seconds = size / ASSUMED_BYTES_PER_SECOND
    if stop_seconds is None or seconds <= WRITTEN_SHARE * stop_seconds:
        return None
    return (
        f"a checkpoint is about {size / 1e9:.1f} GB, which takes {seconds:.0f} s at "
        f"{ASSUMED_BYTES_PER_SECOND / 1e6:.0f} MB/s, and the learner is killed {stop_seconds:g} s after "
        "SIGTERM"
    )


def too_slow(seconds: float, *, stop_seconds: float | None) -> str | None:
    """The same, for a checkpoint that was written in `seconds`."""
    if stop_seconds is None or seconds <= WRITTEN_SHARE * stop_seconds:
        return None
    return f"the checkpoint took {seconds:.0f} s, and the learner is killed {stop_seconds:g} s after SIGTERM"
