"""Starts the learner's ranks on this machine: `python -m slipstream.learner.torchrun RANKS [ARGUMENTS]`.

It is torchrun, which starts the processes and ends all of them when one dies; and it dies with its parent,
which torchrun alone would outlive.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from slipstream.rpc.pod import die_with_parent

LEARNER = "slipstream.learner"


def main(argv: Sequence[str]) -> None:
    """Run the ranks to their end. Errors: torch's ChildFailedError when one fails."""
    from torch.distributed import run

    parser = argparse.ArgumentParser(prog="python -m slipstream.learner.torchrun")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--parent", type=int)
    own, others = parser.parse_known_args(argv)
    if own.parent is not None:
        die_with_parent(own.parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _pass_on)
    how = ["--standalone", f"--nproc-per-node={own.ranks}", "--signals-to-handle=SIGQUIT"]
    run.main([*how, "-m", LEARNER, *others])


def _pass_on(number: int, frame: object) -> None:
    """The ranks end in order, and torchrun with them; by itself it would call that a failure."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), number)


if __name__ == "__main__":
    main(sys.argv[1:])
