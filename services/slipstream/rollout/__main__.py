"""The rollout pod: `python -m slipstream.rollout --config FILE --name ROLLOUT`.

As the head of an engine over several nodes it takes `--node-rank 0 --master-addr HOST` too.
"""

import asyncio
import sys
from functools import partial

from slipstream.config import RunConfig
from slipstream.rollout.emulated_engine import EmulatedEngine
from slipstream.rollout.engine import Engine
from slipstream.rollout.fleet import FleetMember, Identity
from slipstream.rollout.node_rank import NodeRank, parse_node_rank
from slipstream.rollout.presence import Presence, advertised_address
from slipstream.rollout.servicer import RolloutServicer
from slipstream.rollout.state import show_state, state_of
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod, run_pod
from slipstream.rpc.server import Server, start_server
from slipstream.served_version import ServedVersion
from slipstream.telemetry.metrics import Metrics
from slipstream.v1.rollout_pb2_grpc import add_RolloutServicer_to_server
from slipstream.weights.group import backend_of, nccl_version
from slipstream.weights.manifest import model_fingerprint

LEARNER_GONE_SECONDS = 5.0
"""Longer than for calls that can be retried: a lost stream costs a new process group."""


async def main(pod: Pod, *, node: NodeRank | None = None) -> None:
    """Start the engine, join the fleet, and sample for actors until the pod is stopped."""
    config = pod.config
    show_state(pod.metrics, lambda: "starting")
    with pod.unstoppable():
        engine = start_engine(config, pod.metrics, node=node)
    served = ServedVersion()
    servicer = RolloutServicer(
        engine=engine,
        served=served,
        max_groups=config.rollout.max_groups,
        chunk_seconds=config.rollout.chunk_seconds,
        metrics=pod.metrics,
        log=pod.log,
    )
    server = await start_server(
        config.rollout.address,
        lambda server: add_RolloutServicer_to_server(servicer, server),
        config=config.rpc,
        log=pod.log,
    )
    replay = open_channel(config.replay.address, config.rpc, log=pod.log)
    learner = open_channel(config.learner.address, config.rpc, log=pod.log, gone_seconds=LEARNER_GONE_SECONDS)
    member = FleetMember(
        engine=engine,
        identity=make_identity(pod),
        served=served,
        metrics=pod.metrics,
        log=pod.log,
        staging_bytes=config.weights.staging_bytes,
        parity_bound=config.weights.parity_bound,
    )
    presence = Presence(
        replay,
        name=pod.name,
        address=advertised_address(config.rollout, server.address),
        servicer=servicer,
        served=served,
        seconds=config.replay.heartbeat_seconds,
        rpc=config.rpc,
        metrics=pod.metrics,
        log=pod.log,
    )
    show_state(
        pod.metrics,
        lambda: state_of(served, groups_running=servicer.groups_running, stopping=pod.stop.is_set()),
    )
    pod.health.ready_while(lambda: served.serving)
    pod.announce(server.address)
    try:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(member.run(learner)),
                tasks.create_task(presence.run()),
                tasks.create_task(servicer.watch_engine()),
                tasks.create_task(_serve_health(server, served)),
            ]
            await pod.stop.wait()
            for task in background:
                task.cancel()
            await asyncio.gather(presence.leave(), servicer.drain())
    finally:
        await server.stop(grace=1)
        for channel in (replay, learner):
            await channel.close(None)
        await engine.close()


def start_engine(config: RunConfig, metrics: Metrics, *, node: NodeRank | None = None) -> Engine:
    """Start the configured engine. Blocks while vLLM loads the model."""
    if config.rollout.engine == "emulated":
        return EmulatedEngine(config)
    from slipstream.rollout.vllm_engine import start_vllm

    return start_vllm(config, config.model.directory(), metrics, node=node)


def make_identity(pod: Pod) -> Identity:
    """Return the facts with which this rollout joins the fleet of the learner."""
    import torch

    on_gpu = pod.config.rollout.engine == "vllm" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    return Identity(
        worker_id=pod.name,
        model_fingerprint=model_fingerprint(pod.config.model.directory()),
        backend=backend_of(device),
        ranks=pod.config.rollout.tensor_parallel,
        nccl_version=nccl_version(device),
    )


async def _serve_health(server: Server, served: ServedVersion) -> None:
    """Report this rollout as healthy over gRPC once it serves a verified version."""
    await served.wait()
    await server.set_serving(True)


if __name__ == "__main__":
    own_node, arguments = parse_node_rank("rollout", sys.argv[1:])
    sys.exit(run_pod("rollout", partial(main, node=own_node), arguments))
