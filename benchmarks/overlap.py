"""Publishing while the next step trains, against training that waits for it: the same run, side by side.

    python -m benchmarks.overlap [--steps N] [--layers L] [--width W] [--group-size G] [--rounds R]

The engine is emulated, so that the cores are the learner's and the broadcast's; gradients and transfer are
real. About half of the answers are rewarded, so each step changes all weights in float32, and each version is
sent in full. Without overlap a step takes training + copy + broadcast; an ideal overlap hides copy and
broadcast, and a step takes the longer of the two. Both cores are busy already when torch trains with two
threads: then there is nothing to hide behind.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.circle import ADDITION, laid_over, rows_of
from benchmarks.ratio import print_ratio

SKIPPED_STEPS = 3
MIB = 1 << 20
HALF_OF_THE_ANSWERS = r"[0-4]\d*"
"""Answers of the emulated engine consist of random digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Medians over the steps of a run, in seconds."""

    step: float
    train: float
    publish: float
    transfer: float
    sent: float
    """Bytes."""


def main() -> None:
    """Run the rounds, interleaved, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measured: dict[bool, list[Measured]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(arguments.rounds):
            for overlap, runs in measured.items():
                steps = rows_of(job(arguments, overlap=overlap), Path(scratch) / f"{number}-{overlap}")
                runs.append(read(steps))
    medians = {overlap: median(runs) for overlap, runs in measured.items()}
    print("| overlap | step | train | waits to publish | transfer | MiB sent |")
    print("| --- | --- | --- | --- | --- | --- |")
    for overlap, row in medians.items():
        times = (row.step, row.train, row.publish, row.transfer)
        cells = " | ".join(f"{1000 * seconds:,.0f} ms" for seconds in times)
        print(f"| {'on' if overlap else 'off'} | {cells} | {row.sent / MIB:,.1f} |")
    print()
    print_ratio("a step with overlap / without", medians[True].step / medians[False].step)
    print_ratio("wait to publish with overlap / without", medians[True].publish / medians[False].publish)


def job(arguments: argparse.Namespace, *, overlap: bool) -> dict[str, Any]:
    """Return a job with a model whose broadcast takes time, and a learner that never waits for data."""
    layers, width = arguments.layers, arguments.width
    steps = arguments.steps
    return laid_over(
        ADDITION,
        {
            "model": {"tiny": {"layers": layers, "width": width, "heads": width // 64, "max_tokens": 128}},
            "warmup": {"steps": 0},
            "rewards": [{"name": "format", "kind": "format", "weight": 1.0, "pattern": HALF_OF_THE_ANSWERS}],
            "staleness": {"pipeline_depth": 4},
            "rollout": {
                "engine": "emulated",
                "emulated": {"median_seconds": 0.05, "sigma": 0.5},
                "group_size": arguments.group_size,
            },
            "learner": {"steps": steps, "groups_per_step": 16, "checkpoint": {"every_steps": steps}},
            "weights": {"overlap": overlap},
            "evaluation": {"prompts": 4, "samples_per_prompt": 1, "reward": "format"},
        },
    )


def median(runs: Sequence[Measured]) -> Measured:
    """Return the median of every column."""
    return Measured(
        **{name: statistics.median(getattr(run, name) for run in runs) for name in Measured.__slots__}
    )


def read(steps: Sequence[Mapping[str, Any]]) -> Measured:
    """Return the medians after the first steps. Errors: ValueError if a step changed nothing."""
    kept = steps[SKIPPED_STEPS:]
    if not all(row["gradient_norm"] for row in kept):
        raise ValueError("a step had no gradient, so its version was not sent")
    return Measured(
        step=statistics.median(
            after["elapsed_seconds"] - before["elapsed_seconds"] for before, after in pairwise(kept)
        ),
        train=statistics.median(row["train_seconds"] for row in kept),
        publish=statistics.median(row["publish_seconds"] for row in kept),
        transfer=statistics.median(row["transfer_seconds"] for row in kept),
        sent=statistics.median(row["sent_bytes"] for row in kept),
    )


if __name__ == "__main__":
    main()
