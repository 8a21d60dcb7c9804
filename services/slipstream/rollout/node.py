"""A further node of an engine over several nodes: it runs its share of the ranks, and takes no leases.

    python -m slipstream.rollout.node --config FILE --node-rank K --master-addr HOST [--master-port PORT]

The head, node 0, is the rollout pod itself, started with the same arguments. This process lives as long as
the head. Exit status: 0 after SIGTERM; 1 when the head or a rank of this node has ended, because the whole
engine must then start again, and when the nodes have not connected within rollout.start_timeout_seconds.
"""

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from slipstream.config import RunConfig
from slipstream.rollout.engine import EngineDied
from slipstream.rollout.node_rank import NodeRank, parse_node_rank
from slipstream.rpc.errors import Unreachable
from slipstream.rpc.pod import USAGE_ERROR, Pod, run_pod

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LOOK_SECONDS = 0.5
CONNECT_SECONDS = 10.0
HEAD_STOP_SECONDS = 5.0
"""Longest wait, after SIGTERM, for the head to drain."""
HEAD_SECONDS = 3600.0  # the head may wait for a free machine; the startup probe of its pod is shorter
# A head whose machine is lost closes no connection: TCP keepalive detects it after 10 + 3 * 5 s.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


async def main(pod: Pod, *, node: NodeRank) -> None:
    """Start the ranks of this node, and keep them until the pod is stopped or the engine ends."""
    connection = await reach_head(pod, node)
    if connection is None:
        return
    with pod.unstoppable(), _bounded(pod):
        executor = start_ranks(pod.config, node)
    try:
        head = asyncio.create_task(_until_head_ended(*connection))
        pod.announce(f"node {node.rank} of {pod.config.rollout.nodes}")
        await hold(pod, head, executor)
    finally:
        executor.shutdown()


async def reach_head(pod: Pod, node: NodeRank) -> Connection | None:
    """Return a connection to the head, which may start long after this node; None after a stop.

    Errors: Unreachable after HEAD_SECONDS.
    """
    pod.log.info("waiting for the head", address=f"{node.master_addr}:{node.master_port}")
    deadline = time.monotonic() + HEAD_SECONDS
    while not pod.stop.is_set():
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(node.master_addr, node.master_port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"no head of the engine at {node.master_addr}:{node.master_port} in {HEAD_SECONDS:g} s"
                ) from error
        with suppress(TimeoutError):
            await asyncio.wait_for(pod.stop.wait(), LOOK_SECONDS)
    return None


def start_ranks(config: RunConfig, node: NodeRank) -> Any:
    """Start vLLM's executor with the ranks of this node. Blocks until all nodes are connected.

    Errors: those of vLLM.
    """
    from slipstream.rollout.vllm_arguments import prepare_arguments

    arguments = prepare_arguments(config, config.model.directory(), node=node)
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    return MultiprocExecutor(arguments.create_engine_config(headless=True), monitor_workers=False)


async def hold(pod: Pod, head: asyncio.Task[None], executor: Any) -> None:
    """Return after SIGTERM, once the head has ended or its drain is over.

    Errors: EngineDied when the head or a rank ends before SIGTERM.
    """
    stopping = asyncio.create_task(pod.stop.wait())
    try:
        while not (head.done() or stopping.done()):
            await asyncio.wait((head, stopping), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            died = [worker.rank for worker in executor.workers if not worker.proc.is_alive()]
            if died and not stopping.done():
                raise EngineDied(f"rank {died[0]} of the engine ended; its log says why")
        if not stopping.done():
            raise EngineDied(
                "the head of the engine has ended; the ranks of this node end too and start again with it"
            )
        await asyncio.wait((head,), timeout=HEAD_STOP_SECONDS)
    finally:
        for task in (head, stopping):
            task.cancel()


async def _until_head_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Return when the head has ended: it keeps the port at which the ranks connected open while it lives."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, seconds)
    try:
        await reader.read(1)
    except OSError:
        pass
    finally:
        writer.close()


@contextmanager
def _bounded(pod: Pod) -> Iterator[None]:
    """End the process if the block, which cannot be cancelled, takes too long."""

    def give_up() -> None:
        pod.log.error(
            "stopped",
            error=f"the nodes of the engine did not connect in {seconds:g} s (rollout.start_timeout_seconds)",
        )
        os._exit(1)  # its ranks die with it

    seconds = pod.config.rollout.start_timeout_seconds
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run(argv: list[str]) -> int:
    """Run the node from command-line arguments; return the exit status."""
    node, rest = parse_node_rank("rollout.node", argv)
    if node is None or node.rank == 0:
        print("slipstream.rollout.node: give --node-rank K from 1 on, and --master-addr", file=sys.stderr)
        return USAGE_ERROR
    return run_pod("rollout", partial(main, node=node), rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
