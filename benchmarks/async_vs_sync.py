"""Asynchronous against synchronous training: the same job with pipeline_depth 0 and 2, side by side.

    python benchmarks/async_vs_sync.py [--steps N] [--engine emulated|vllm|both]

The emulated engine has 8 places, lognormal times (sigma 0.5) and a learner that takes 0.3 of the sum of its
own and the mean generation time. A synchronous step waits for the slowest of 8 completions, then trains:
0.7 · E[max of 8]/mean + 0.3. An ideal asynchronous one keeps all places busy and hides the learner: 0.7.
Their ratio, 2.30, is the limit; the benchmark prints how close we come. Everything but the engine's
arithmetic is real: Redis, gRPC, the verifier, gradients, and the broadcast of weights.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIGMA = 0.5
PLACES = 8
GROUP_SIZE = 2
MEAN_SECONDS = 1.0
LEARNER_SHARE = 0.3
LEARNER_SECONDS = MEAN_SECONDS * LEARNER_SHARE / (1 - LEARNER_SHARE)
SKIPPED_STEPS = 4  # the pipeline fills


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run achieved after its first steps."""

    samples_per_second: float
    idle: float
    staleness: float
    pause_ms: float
    transfer_ms: float


def main() -> None:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--engine", choices=("emulated", "vllm", "both"), default="both")
    arguments = parser.parse_args()
    engines = ("emulated", "vllm") if arguments.engine == "both" else (arguments.engine,)
    with tempfile.TemporaryDirectory() as scratch:
        for engine in engines:
            report(engine, {depth: run(engine, depth, arguments.steps, Path(scratch)) for depth in (0, 2)})


def report(engine: str, measured: dict[int, Measured]) -> None:
    """Print one engine's runs and their ratio."""
    print(f"\n{engine} engine")
    print(
        f"{'pipeline_depth':>16} {'samples/s':>10} {'learner idle':>13} {'staleness':>10} "
        f"{'pause':>9} {'transfer':>9}"
    )
    for depth, row in measured.items():
        line = (
            f"{depth:>16} {row.samples_per_second:>10.2f} {row.idle:>13.1%} {row.staleness:>10.2f} "
            f"{row.pause_ms:>6.0f} ms {row.transfer_ms:>6.0f} ms"
        )
        share = (
            f"  {row.samples_per_second / IDEAL[depth]():.0%} of its ideal" if engine == "emulated" else ""
        )
        print(line + share)
    ratio = measured[2].samples_per_second / measured[0].samples_per_second
    print(f"asynchronous / synchronous: {ratio:.2f}x", end="")
    if engine == "emulated":
        ideal = IDEAL[2]() / IDEAL[0]()
        print(f"; the ideal is {ideal:.2f}x, so {ratio / ideal:.0%} of it", end="")
    print()


def synchronous_ideal(draws: int = 200_000) -> float:
    """Samples per second of a step that waits for the slowest place, then trains; by simulation."""
    generator = random.Random(0)
    batches = draws // PLACES
    slowest = [max(math.exp(generator.gauss(0, SIGMA)) for _ in range(PLACES)) for _ in range(batches)]
    seconds = MEAN_SECONDS * sum(slowest) / batches / math.exp(SIGMA**2 / 2) + LEARNER_SECONDS
    return PLACES * GROUP_SIZE / seconds


def asynchronous_ideal() -> float:
    """Samples per second with every place always busy and the learner hidden behind generation."""
    return PLACES * GROUP_SIZE / max(MEAN_SECONDS, LEARNER_SECONDS)


IDEAL = {0: synchronous_ideal, 2: asynchronous_ideal}


def run(engine: str, depth: int, steps: int, scratch: Path) -> Measured:
    """Run the job once and read what its learner wrote."""
    settings = [
        f"learner.steps={steps}",
        f"staleness.pipeline_depth={depth}",
        f"learner.checkpoint.every_steps={steps}",
        "evaluation.every_steps=0",
        "evaluation.prompts=16",
        "evaluation.samples_per_prompt=2",
        *(emulated_settings() if engine == "emulated" else []),
    ]
    return read(rows_of(settings, scratch / f"{engine}-{depth}"))


def rows_of(settings: list[str], runs: Path) -> Path:
    """Run the example with other settings; the rows that its learner wrote."""
    settings = [*settings, f"runs_dir={runs}"]
    example = str(ROOT / "examples" / "addition.yaml")
    command = [sys.executable, "-m", "slipstream.cli", "run", example, "--plain"]
    command += [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return runs / "latest" / "metrics.jsonl"


def emulated_settings() -> list[str]:
    """The job of the docstring."""
    return [
        "rollout.engine=emulated",
        f"rollout.emulated.median_seconds={MEAN_SECONDS / math.exp(SIGMA**2 / 2)}",
        f"rollout.emulated.sigma={SIGMA}",
        f"rollout.max_groups={PLACES}",
        f"rollout.group_size={GROUP_SIZE}",
        "rollout.max_new_tokens=4",
        f"learner.groups_per_step={PLACES}",
        f"learner.least_step_seconds={LEARNER_SECONDS}",
        "warmup.steps=0",
    ]


def read(rows_file: Path) -> Measured:
    """Throughput, idle share and mean staleness after the first steps."""
    rows = [json.loads(line) for line in rows_file.read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if row["event"] == "step"]
    kept = steps[SKIPPED_STEPS:]
    seconds = kept[-1]["elapsed_seconds"] - steps[SKIPPED_STEPS - 1]["elapsed_seconds"]
    return Measured(
        samples_per_second=sum(row["completions"] for row in kept) / seconds,
        idle=sum(row["wait_seconds"] for row in kept) / seconds,
        staleness=sum(row["staleness_mean"] for row in kept) / len(kept),
        pause_ms=1000 * sum(row["pause_seconds"] for row in kept) / len(kept),
        transfer_ms=1000 * sum(row["transfer_seconds"] for row in kept) / len(kept),
    )


if __name__ == "__main__":
    main()
