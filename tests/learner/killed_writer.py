"""Kill writers of checkpoints while they write, and print the remaining files: MODEL ROOT KILLS.

Writers are forked from it, so that torch is imported once.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from slipstream.learner.checkpoints.checkpoint import (
    CheckpointWriter,
    State,
    latest_checkpoint,
    load_tensors,
    prune,
    read_state,
)
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone

SIZE = 1_000_000
NAMES = ("a", "b", "c", "d")
SECONDS = 30.0


def write(root: Path, policy: Policy, version: int) -> None:
    """Checkpoints of 16 MB, one after the other; every number of one is its version."""
    writer = CheckpointWriter(root, Alone())
    while True:
        writer.prepare(State(version=version, model_fingerprint="f"), policy)
        writer.begin(version, {name: torch.full((SIZE,), float(version)) for name in NAMES})
        writer.settle()
        prune(root, keep=2)
        version += 1


def newest(root: Path) -> int:
    """The newest checkpoint's version; 0 for none."""
    checkpoint = latest_checkpoint(root)
    return 0 if checkpoint is None else read_state(checkpoint).version


def kill_in_the_middle(root: Path, policy: Policy) -> dict[str, Any]:
    """Let a writer finish a checkpoint, and kill it while it writes the next."""
    first = newest(root) + 1
    process = os.fork()
    if process == 0:
        try:
            write(root, policy, first)
        finally:
            os._exit(1)
    deadline = time.monotonic() + SECONDS
    while newest(root) < first or not half_written(root):
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return {"signal": os.WTERMSIG(status), "first": first, "newest": newest(root), "whole": whole(root)} | {
        "partial": half_written(root)
    }


def half_written(root: Path) -> bool:
    """Whether there is a part of a checkpoint with something in it."""
    return any(path.stat().st_size for path in root.glob(".partial-*/tensors/*") if path.exists())


def whole(root: Path) -> bool:
    """Whether every number of the newest checkpoint is its version."""
    checkpoint = latest_checkpoint(root)
    assert checkpoint is not None
    tensors = {name: torch.zeros(SIZE) for name in NAMES}
    load_tensors(checkpoint, tensors)
    return all(bool((tensor == newest(root)).all()) for tensor in tensors.values())


def main(model: Path, root: Path, kills: int) -> None:
    torch.set_num_threads(1)
    policy = load_policy(model, source=model, device=torch.device("cpu"), dtype=torch.float32)
    print(json.dumps([kill_in_the_middle(root, policy) for _ in range(kills)]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
