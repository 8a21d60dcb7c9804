"""A rollout in a process of its own, which also samples for itself: once for each line of the standard input.

It prints its address, and then a line `alone TOKENS_PER_SECOND` for each line that it reads.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from slipstream.config import RunConfig, TinyModel, parse_config
from slipstream.records import Sampling
from slipstream.rollout.__main__ import start_engine
from slipstream.rollout.engine import Engine
from slipstream.rollout.servicer import RolloutServicer
from slipstream.rpc.server import start_server
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1.rollout_pb2_grpc import add_RolloutServicer_to_server

from benchmarks.actors.load import Load, measure, prompt_of

CONTEXT = 512
ALONE = "alone "
"""Begins a line with the tokens a second of the engine alone."""


def config_of(directory: Path, load: Load) -> RunConfig:
    """Return the configuration of an engine; vLLM gets a tiny model in `directory`."""
    if load.engine == "vllm":
        from slipstream.learner.policy.tiny import make_tiny_model

        make_tiny_model(TinyModel(layers=4, max_tokens=CONTEXT), directory, seed=1)
    return parse_config(
        {
            "model": {"path": str(directory)} if load.engine == "vllm" else {"tiny": {}},
            "rollout": {
                "engine": load.engine,
                "group_size": 1,
                "max_groups": load.streams,
                "max_new_tokens": load.tokens,
                "kv_cache_gib": 0.5,
                "emulated": {"median_seconds": load.seconds_per_answer, "sigma": 0.0},
            },
        }
    )


async def serve_version(engine: Engine) -> None:
    """Label the tokens of an engine without a learner with version 0."""
    llm = getattr(engine, "_llm", None)
    if llm is None:
        await engine.commit(0)
    else:
        await llm.update_weight_version("0")


async def sample_alone(engine: Engine, load: Load) -> None:
    """Sample with the engine for callers in this process, and print the tokens a second."""
    sampling = Sampling(temperature=1.0, max_tokens=load.tokens)

    async def sample(number: int) -> int:
        return len((await engine.sample(prompt_of(number), sampling)).token_ids)

    print(f"{ALONE}{(await measure(load, sample)).tokens_per_second}", flush=True)


async def serve(engine: Engine, load: Load) -> None:
    """Serve actors, and sample alone for each line of the standard input, until that is closed."""
    config, served = parse_config({}), ServedVersion()
    served.serve(0)
    servicer = RolloutServicer(
        engine=engine,
        served=served,
        max_groups=load.streams,
        chunk_seconds=config.rollout.chunk_seconds,
        metrics=Metrics(),
        log=Log(pod="rollout"),
    )
    server = await start_server(
        "127.0.0.1:0", lambda server: add_RolloutServicer_to_server(servicer, server), config=config.rpc
    )
    print(server.address, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        await sample_alone(engine, load)
    await server.stop(grace=0)
    await asyncio.sleep(0.2)  # threads of gRPC still use the event loop


async def main(load: Load) -> None:
    """Start the engine, and serve."""
    with tempfile.TemporaryDirectory() as directory:
        engine = start_engine(config_of(Path(directory), load), Metrics())
        await serve_version(engine)
        await serve(engine, load)
        await engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("load", type=Load.parse)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.load))
