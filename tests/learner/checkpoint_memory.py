"""Write a checkpoint of MEGABYTES of float32 tensors and print its memory use: MEGABYTES ROOT [changing].

With `changing` the tensors change as soon as the checkpoint is begun, as those of a training step would.
"""

import json
import sys
import time
from pathlib import Path

import torch
from learner.fakes import TINY
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter, State
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.learner.ranks.ranks import Alone

TENSORS = 16
MEGABYTE = 2**20


def memory(field: str) -> float:
    """A line of /proc/self/status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def main(megabytes: int, root: Path, *, changing: bool) -> None:
    """Measure, and print the result as JSON."""
    make_tiny_model(TINY, root / "model", seed=0)
    policy = load_policy(
        root / "model", source=root / "model", device=torch.device("cpu"), dtype=torch.float32
    )
    size = megabytes * MEGABYTE // TENSORS // 4
    tensors = {f"model/{number}": torch.full((size,), float(number)) for number in range(TENSORS)}
    writer = CheckpointWriter(root / "checkpoints", Alone())
    writer.prepare(State(version=1, model_fingerprint="f"), policy)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    before, started = memory("VmRSS"), time.monotonic()
    writer.begin(1, tensors)
    begun = time.monotonic()
    if changing:
        writer.copy_unwritten()
        for tensor in tensors.values():
            tensor.zero_()
    writer.settle()
    print(
        json.dumps(
            {
                "megabytes": megabytes,
                "grown_by": round(memory("VmHWM") - before),
                "begin_seconds": round(begun - started, 2),
                "seconds": round(time.monotonic() - started, 2),
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), changing="changing" in sys.argv[3:])
