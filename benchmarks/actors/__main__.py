"""The cost of sampling through an actor: tokens a second through `Rollout.Sample`, against the engine alone.

    python -m benchmarks.actors [--seconds S] [--rounds N] [--engine emulated|vllm|both] [--episodes N]

The engine alone samples in its own process, for callers in that process. Then a rollout serves the same
engine over gRPC, and an actor's streams in this process sample from it: token ids in, chunks of tokens,
logprobs and versions out. Both keep 64 answers under way, in alternating rounds; the ratio is that of the
medians. All processes share the machine's cores. The emulated engine waits instead of computing, so its ratio
shows the added latency, and vLLM's ratio also the CPU time that the actor takes from the engine. Last, one
actor has 1,000 concurrent episodes.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.actor.rollouts import Rollouts
from slipstream.config import parse_config
from slipstream.records import ListedRollout, RolloutStatus, Sampling
from slipstream.rpc.channel import open_channel
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

from benchmarks.actors.load import Load, Measured, measure, prompt_of
from benchmarks.ratio import print_ratio

STREAMS = 64
EMULATED = {"tokens": 200, "seconds_per_answer": 4.0}
VLLM = {"tokens": 200}
SERVER = (sys.executable, "-m", "benchmarks.actors.server")


def engine_alone(load: Load) -> float:
    """Return the tokens a second of an engine whose callers are in its process."""
    done = subprocess.run([*SERVER, "direct", str(load)], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


@contextmanager
def rollout(load: Load) -> Iterator[str]:
    """Start a rollout, and yield its address."""
    process = subprocess.Popen(
        [*SERVER, "serve", str(load)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        address = ""
        while not address.startswith("127.0.0.1:"):  # vLLM prints other lines
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the rollout ended before it served")
            address = line.strip()
        yield address
    finally:
        process.stdin.close()
        process.wait(60)


async def through_an_actor(load: Load, address: str) -> Measured:
    """Sample from a rollout through an actor, with one group for each answer."""
    config = parse_config({})
    listed = ListedRollout(worker_id="rollout-0", address=address, status=RolloutStatus())
    rollouts = Rollouts(
        connect=lambda at: open_channel(at, config.rpc),
        silence_seconds=config.actor.silence_seconds,
        most_engines=1,
        served=ServedVersion(),
        metrics=Metrics(),
        log=Log(pod="actor-0"),
    )
    rollouts.update([listed])
    sampling = Sampling(temperature=1.0, max_tokens=load.tokens)

    async def sample(number: int) -> int:
        async with rollouts.place(f"g{number}") as place:
            return len((await place.sample(prompt_of(number), sampling)).token_ids)

    try:
        return await measure(load, sample)
    finally:
        await rollouts.close()


def measured_through(load: Load) -> Measured:
    """Start a rollout, and measure."""
    with rollout(load) as address:
        return asyncio.run(through_an_actor(load, address))


def compare(load: Load, rounds: int) -> None:
    """Print the ratio of one engine."""
    alone, through = [], []
    for _ in range(rounds):
        alone.append(engine_alone(load))
        through.append(measured_through(load))
        cpu = 1000 * through[-1].cpu_seconds_per_thousand
        print(
            f"{load.engine}: {alone[-1]:,.0f} tokens/s alone, {through[-1].tokens_per_second:,.0f} through "
            f"an actor, whose CPU time is {cpu:.1f} ms for 1,000 tokens",
            flush=True,
        )
    ratio = statistics.median(each.tokens_per_second for each in through) / statistics.median(alone)
    print_ratio(f"{load.engine}, through an actor / engine alone", ratio)
    print_ratio(
        f"{load.engine}, CPU milliseconds of the actor for 1,000 tokens",
        1000 * statistics.median(each.cpu_seconds_per_thousand for each in through),
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--engine", choices=("emulated", "vllm", "both"), default="both")
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    for engine, shape in (("emulated", EMULATED), ("vllm", VLLM)):
        if arguments.engine in (engine, "both"):
            load = Load(engine=engine, streams=STREAMS, seconds=arguments.seconds, **shape)
            compare(load, arguments.rounds)
    many = Load(
        engine="emulated",
        streams=arguments.episodes,
        tokens=100,
        seconds_per_answer=20.0,
        seconds=arguments.seconds,
    )
    measured = measured_through(many)
    ideal = many.streams * many.tokens / many.seconds_per_answer
    print(f"{many.streams:,} episodes: {measured.tokens_per_second:,.0f} tokens/s, ideal {ideal:,.0f}")
    print_ratio("episodes in one actor, tokens / ideal", measured.tokens_per_second / ideal)


if __name__ == "__main__":
    main()
