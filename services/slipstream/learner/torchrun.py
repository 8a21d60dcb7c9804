"""Starts the learner's ranks of one machine: `python -m slipstream.learner.torchrun RANKS [ARGUMENTS]`.

torchrun starts the processes, and ends all of them when one dies. This program also ends when its parent
dies, which torchrun does not. If a learner spans machines, run it on each machine with the same RANKS; the
processes connect to an address of the first machine, on which rank 0 runs:

    python -m slipstream.learner.torchrun 8 --nnodes 2 --node-rank 1 --master-addr HOST --master-port PORT ...

torch's store does not authenticate its clients. It listens on all addresses, on PORT only. Without a port, on
one machine, torchrun takes free ports, which a network policy cannot tell from those of the weights.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from slipstream.processes.lifetime import parent_death, process_tree

LEARNER = "slipstream.learner"
LOOPBACK = "127.0.0.1"
MASTER_PORT = 29400


def main(argv: Sequence[str]) -> None:
    """Run the ranks to their end. Errors: torch's ChildFailedError when one fails."""
    from torch.distributed import run

    own, others = parse(argv)
    if own.parent is not None:
        parent_death.die_with_parent(own.parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _pass_on)
    run.main([*rendezvous_arguments(own), "--signals-to-handle=SIGQUIT", "-m", LEARNER, *others])


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this program, and the arguments for the learner."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.learner.torchrun")
    parser.add_argument("ranks", type=int, help="processes on this machine")
    parser.add_argument("--nnodes", type=int, default=1, help="machines of the learner")
    parser.add_argument("--node-rank", type=int, default=0, help="which of them this one is")
    parser.add_argument("--master-addr", help="address of the first")
    parser.add_argument("--master-port", type=int, help="port of torch's store on the first")
    parser.add_argument("--parent", type=int, help="process id whose death ends this process")
    own, others = parser.parse_known_args(argv)
    if own.nnodes > 1 and own.master_addr is None:
        parser.error(f"--nnodes {own.nnodes} needs --master-addr, the address of node 0")
    if not 0 <= own.node_rank < own.nnodes:
        parser.error(
            f"--node-rank {own.node_rank} must be from 0 to {own.nnodes - 1} with --nnodes {own.nnodes}"
        )
    return own, others


def rendezvous_arguments(own: argparse.Namespace) -> list[str]:
    """Return torchrun's arguments for how the processes find each other."""
    local = f"--nproc-per-node={own.ranks}"
    if own.nnodes == 1 and own.master_port is None:
        return ["--standalone", local]
    address, port = own.master_addr or LOOPBACK, own.master_port or MASTER_PORT
    where = [f"--master-addr={address}", f"--master-port={port}"]
    return [f"--nnodes={own.nnodes}", f"--node-rank={own.node_rank}", local, *where]


def _pass_on(number: int, frame: object) -> None:
    """Pass a signal on to the ranks, so that they end in order. torchrun itself would report a failure."""
    for child in process_tree.children():
        with suppress(ProcessLookupError):
            os.kill(child, number)


if __name__ == "__main__":
    main(sys.argv[1:])
