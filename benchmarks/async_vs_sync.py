"""Asynchronous against synchronous training: the same job with pipeline_depth 0 and 2, side by side.

    python -m benchmarks.async_vs_sync [--steps N] [--engine emulated|vllm|both] [--mean-seconds S]

The emulated engine has 8 places, lognormal times (sigma 0.5) and a learner that takes 0.3 of the sum of its
own and the mean generation time. A synchronous step waits for the slowest of 8 completions, then trains:
0.7 · E[max of 8]/mean + 0.3. An ideal asynchronous one keeps all places busy and hides the learner: 0.7.
Their ratio is the limit; the benchmark prints the measured share of it. Everything except the engine is
real: Redis, gRPC, the verifier, gradients, and the broadcast of weights. Emulated answers are random tokens,
nearly all of them wrong, so the job has no filter on the rewards of a group.
"""

import argparse
import math
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.circle import ADDITION, laid_over, rows_of
from benchmarks.ratio import print_ratio

SIGMA = 0.5
PLACES = 8
GROUP_SIZE = 2
MEAN_SECONDS = 1.0
LEARNER_SHARE = 0.3
DEPTHS = (0, 2)
SKIPPED_STEPS = 4  # until the pipeline is full


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a run after its first steps."""

    samples_per_second: float
    idle: float
    staleness: float
    pause_ms: float
    transfer_ms: float


def main() -> None:
    """Run the selected engines, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--engine", choices=("emulated", "vllm", "both"), default="both")
    parser.add_argument("--mean-seconds", type=float, default=MEAN_SECONDS, help="of an emulated generation")
    arguments = parser.parse_args()
    engines = ("emulated", "vllm") if arguments.engine == "both" else (arguments.engine,)
    jobs = {"emulated": emulated_job(arguments.mean_seconds), "vllm": ADDITION}
    ideals = {"emulated": ideal(arguments.mean_seconds), "vllm": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for engine in engines:
            runs = {
                depth: read(
                    rows_of(
                        at_depth(jobs[engine], depth, arguments.steps), Path(scratch) / f"{engine}-{depth}"
                    )
                )
                for depth in DEPTHS
            }
            report(engine, runs, ideals[engine])


def report(engine: str, measured: Mapping[int, Measured], ideals: Mapping[int, float]) -> None:
    """Print one engine's runs and their ratio."""
    print(f"{engine} engine")
    print(
        f"{'pipeline_depth':>16} {'samples/s':>10} {'learner idle':>13} {'staleness':>10} "
        f"{'pause':>9} {'transfer':>9}"
    )
    for depth, row in measured.items():
        line = (
            f"{depth:>16} {row.samples_per_second:>10.2f} {row.idle:>13.1%} {row.staleness:>10.2f} "
            f"{row.pause_ms:>6.0f} ms {row.transfer_ms:>6.0f} ms"
        )
        print(line + (f"  {row.samples_per_second / ideals[depth]:.0%} of its ideal" if ideals else ""))
    ratio = measured[2].samples_per_second / measured[0].samples_per_second
    print_ratio(f"{engine} engine, asynchronous / synchronous", ratio)
    if ideals:
        print_ratio(f"{engine} engine, share of the ideal ratio", ratio / (ideals[2] / ideals[0]))
    print(flush=True)


def ideal(mean_seconds: float, draws: int = 200_000) -> dict[int, float]:
    """Samples a second at each depth, by simulation.

    At 0 a step waits for the slowest place, then trains; at 2 every place is always busy, and the learner is
    hidden behind generation.
    """
    generator = random.Random(0)
    batches = draws // PLACES
    slowest = [max(generator.gauss(0, SIGMA) for _ in range(PLACES)) for _ in range(batches)]
    mean = statistics.fmean(map(math.exp, slowest)) / math.exp(SIGMA**2 / 2)
    learner = learner_seconds(mean_seconds)
    samples = PLACES * GROUP_SIZE
    return {0: samples / (mean_seconds * mean + learner), 2: samples / max(mean_seconds, learner)}


def learner_seconds(mean_seconds: float) -> float:
    """Return the time of a learner's step: LEARNER_SHARE of its own and the mean generation time together."""
    return mean_seconds * LEARNER_SHARE / (1 - LEARNER_SHARE)


def at_depth(job: Mapping[str, Any], depth: int, steps: int) -> dict[str, Any]:
    """Return the job with a pipeline depth, and one checkpoint at its end."""
    return laid_over(
        job,
        {
            "staleness": {"pipeline_depth": depth},
            "learner": {"steps": steps, "checkpoint": {"every_steps": steps}},
        },
    )


def emulated_job(mean_seconds: float) -> dict[str, Any]:
    """Return the emulated job that the docstring of this module describes."""
    return laid_over(
        ADDITION,
        {
            "warmup": {"steps": 0},
            "rollout": {
                "engine": "emulated",
                "emulated": {"median_seconds": mean_seconds / math.exp(SIGMA**2 / 2), "sigma": SIGMA},
                "max_groups": PLACES,
                "group_size": GROUP_SIZE,
                "max_new_tokens": 4,
            },
            "learner": {"groups_per_step": PLACES, "least_step_seconds": learner_seconds(mean_seconds)},
        },
    )


def read(steps: Sequence[Mapping[str, Any]]) -> Measured:
    """Throughput, idle share and mean staleness after the first steps."""
    kept = steps[SKIPPED_STEPS:]
    seconds = kept[-1]["elapsed_seconds"] - steps[SKIPPED_STEPS - 1]["elapsed_seconds"]
    return Measured(
        samples_per_second=sum(row["completions"] for row in kept) / seconds,
        idle=sum(row["wait_seconds"] for row in kept) / seconds,
        staleness=statistics.fmean(row["staleness_mean"] for row in kept),
        pause_ms=1000 * statistics.fmean(row["pause_seconds"] for row in kept),
        transfer_ms=1000 * statistics.fmean(row["transfer_seconds"] for row in kept),
    )


if __name__ == "__main__":
    main()
