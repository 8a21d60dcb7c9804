"""The cost of sampling through an actor: tokens a second through `Rollout.Sample`, against the engine alone.

    python -m benchmarks.actors [--seconds S] [--rounds N] [--engine emulated|vllm|both] [--episodes N]

One process has the engine. It samples for callers of its own, which is the engine alone, and it serves the
same engine over gRPC: an actor's streams in this process sample from it, token ids in, chunks of tokens,
logprobs and versions out. Both keep 64 answers under way. They are measured in pairs, one after the other,
each pair in the other order than the one before; the ratio is the median of the ratios of the pairs. All
processes share the machine's cores. The emulated engine waits instead of computing, so its ratio shows the
latency of the way, and vLLM's also what the CPU time of the way takes from the engine. Last, one actor has
1,000 episodes under way.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
from contextlib import closing

from slipstream.actor.rollouts import Rollouts
from slipstream.config import parse_config
from slipstream.records import ListedRollout, RolloutStatus, Sampling
from slipstream.rpc.channel import open_channel
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

from benchmarks.actors.load import Load, Measured, measure, prompt_of
from benchmarks.actors.server import ALONE
from benchmarks.ratio import print_ratio

STREAMS = 64
EMULATED = {"tokens": 200, "seconds_per_answer": 4.0}
VLLM = {"tokens": 200}
SERVER = (sys.executable, "-m", "benchmarks.actors.server")


class Rollout:
    """A process with an engine, which serves it and samples from it itself."""

    def __init__(self, load: Load) -> None:
        self._process = subprocess.Popen(
            [*SERVER, str(load)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._line("127.0.0.1:")

    def alone(self) -> float:
        """Return the tokens a second of the engine for callers in its process."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return float(self._line(ALONE).removeprefix(ALONE))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _line(self, start: str) -> str:
        """Return the next line with this start; vLLM writes lines of its own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line.strip()
        raise RuntimeError("the rollout ended")


async def through_an_actor(load: Load, address: str) -> Measured:
    """Sample from a rollout through an actor, with one group for each answer."""
    config = parse_config({})
    listed = ListedRollout(worker_id="rollout-0", address=address, status=RolloutStatus())
    rollouts = Rollouts(
        connect=lambda at: open_channel(at, config.rpc),
        silence_seconds=config.actor.silence_seconds,
        most_engines=1,
        staleness=config.staleness,
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


def pair(
    rollout: Rollout, load: Load, runner: asyncio.Runner, *, alone_first: bool
) -> tuple[float, Measured]:
    """Return the tokens a second of the engine alone, and what an actor measured."""
    if alone_first:
        alone = rollout.alone()
        return alone, runner.run(through_an_actor(load, rollout.address))
    through = runner.run(through_an_actor(load, rollout.address))
    return rollout.alone(), through


def compare(load: Load, rounds: int, runner: asyncio.Runner) -> None:
    """Print the tokens a second of an engine through an actor, divided by those of the engine alone."""
    ratios, cpus = [], []
    with closing(Rollout(load)) as rollout:
        for number in range(rounds):
            alone, through = pair(rollout, load, runner, alone_first=number % 2 == 0)
            ratios.append(through.tokens_per_second / alone)
            cpus.append(1000 * through.cpu_seconds_per_thousand)
            print(
                f"{load.engine}: {alone:,.0f} tokens/s alone, {through.tokens_per_second:,.0f} through an "
                f"actor ({ratios[-1]:.3f}), whose CPU time is {cpus[-1]:.1f} ms for 1,000 tokens",
                flush=True,
            )
    print_ratio(f"{load.engine}, through an actor / engine alone", statistics.median(ratios))
    print_ratio(f"{load.engine}, CPU milliseconds of the actor for 1,000 tokens", statistics.median(cpus))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=("emulated", "vllm", "both"), default="both")
    parser.add_argument("--episodes", type=int, default=1000)
    arguments = parser.parse_args()
    with asyncio.Runner() as runner:  # one event loop: gRPC keeps the first one
        for engine, shape in (("emulated", EMULATED), ("vllm", VLLM)):
            if arguments.engine in (engine, "both"):
                load = Load(engine=engine, streams=STREAMS, seconds=arguments.seconds, **shape)
                compare(load, arguments.rounds, runner)
        many = Load(
            engine="emulated",
            streams=arguments.episodes,
            tokens=100,
            seconds_per_answer=20.0,
            seconds=arguments.seconds,
        )
        with closing(Rollout(many)) as rollout:
            measured = runner.run(through_an_actor(many, rollout.address))
    ideal = many.streams * many.tokens / many.seconds_per_answer
    print(f"{many.streams:,} episodes: {measured.tokens_per_second:,.0f} tokens/s, ideal {ideal:,.0f}")
    print_ratio("episodes in one actor, tokens / ideal", measured.tokens_per_second / ideal)


if __name__ == "__main__":
    main()
