"""The rank of a node in an engine over several nodes, from command-line arguments."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

MASTER_PORT = 29600
LARGEST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRank:
    """Node `rank` of an engine; all nodes connect to node 0, the head, at `master_addr`:`master_port`."""

    rank: int
    master_addr: str
    master_port: int


def parse_node_rank(name: str, argv: Sequence[str]) -> tuple[NodeRank | None, list[str]]:
    """Return the node rank, None without its arguments, and the remaining arguments.

    Ends the process with status 2 for incomplete or impossible arguments.
    """
    parser = argparse.ArgumentParser(prog=f"python -m slipstream.{name}", add_help=False, allow_abbrev=False)
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--master-addr")
    parser.add_argument("--master-port", type=int, default=MASTER_PORT)
    options, rest = parser.parse_known_args(argv)
    if options.node_rank is None and options.master_addr is None:
        return None, rest
    if options.node_rank is None or not options.master_addr:
        parser.error("--node-rank and --master-addr belong together: give both")
    if options.node_rank < 0 or not 0 < options.master_port <= LARGEST_PORT:
        parser.error(
            f"--node-rank {options.node_rank} --master-port {options.master_port}: the rank must be "
            f"0 or more, and the port from 1 to {LARGEST_PORT}"
        )
    return NodeRank(
        rank=options.node_rank, master_addr=options.master_addr, master_port=options.master_port
    ), rest


def check_node_rank(node: NodeRank | None, *, nodes: int) -> None:
    """Raise ValueError unless the node rank fits the configured number of nodes."""
    if nodes > 1 and node is None:
        raise ValueError(
            f"rollout.nodes is {nodes}, and this process has no node rank: start it with "
            "--node-rank and --master-addr (the chart does, for a pool's `nodes`), or set rollout.nodes: 1"
        )
    if node is not None and node.rank >= nodes:
        raise ValueError(
            f"--node-rank is {node.rank}, and rollout.nodes is {nodes}: ranks go from 0 to {nodes - 1}"
        )
