"""Where a process stands in an engine that spans several nodes, told to it by arguments of its own."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

MASTER_PORT = 29600
LARGEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRank:
    """Node `rank` of an engine, whose first node, the head, is met at `master_addr`:`master_port`."""

    rank: int
    master_addr: str
    master_port: int


def parse_node_rank(name: str, argv: Sequence[str]) -> tuple[NodeRank | None, list[str]]:
    """The place among the arguments, if there is one, and the arguments of every pod.

    Ends the process with status 2 for half a place or an impossible one.
    """
    parser = argparse.ArgumentParser(prog=f"python -m slipstream.{name}", add_help=False, allow_abbrev=False)
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--master-addr")
    parser.add_argument("--master-port", type=int, default=MASTER_PORT)
    given, rest = parser.parse_known_args(argv)
    if given.node_rank is None and given.master_addr is None:
        return None, rest
    if given.node_rank is None or not given.master_addr:
        parser.error("--node-rank and --master-addr belong together: give both")
    if given.node_rank < 0 or not 0 < given.master_port <= LARGEST_PORT:
        parser.error(f"--node-rank {given.node_rank} --master-port {given.master_port} cannot be")
    return NodeRank(rank=given.node_rank, master_addr=given.master_addr, master_port=given.master_port), rest


def check_node_rank(node: NodeRank | None, *, nodes: int) -> None:
    """Errors: ValueError where the place and the configured number of nodes do not fit together."""
    if nodes > 1 and node is None:
        raise ValueError(
            f"rollout.nodes is {nodes}, and this process was not told which of them it is: start it with "
            "--node-rank and --master-addr (the chart does, for a pool's `nodes`), or set rollout.nodes: 1"
        )
    if node is not None and node.rank >= nodes:
        raise ValueError(f"--node-rank is {node.rank}, and rollout.nodes {nodes}: ranks go to {nodes - 1}")
