"""Publishing while the next step trains, against training that waits for it: the same run, side by side.

    python benchmarks/overlap.py [--steps N] [--layers L] [--width W]

The engine is emulated, so that the cores are the learner's and the broadcast's; gradients and transfer are
real. Without overlap a step takes training + snapshot + broadcast; an ideal overlap hides the broadcast, and
a step takes the longer of the two. Both cores are busy already when torch trains with two threads: then there
is nothing to hide behind.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from async_vs_sync import rows_of

SKIPPED_STEPS = 3
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Medians over the steps of one run, in seconds."""

    step: float
    train: float
    publish: float
    transfer: float


def main() -> None:
    """Run the rounds, interleaved, and print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    arguments = parser.parse_args()
    found: dict[bool, list[Measured]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(ROUNDS):
            for overlap in found:
                runs = Path(scratch) / f"{number}-{overlap}"
                rows = rows_of(settings(arguments, overlap), runs)
                found[overlap].append(read(rows))
    print(f"{'overlap':>8} {'step':>9} {'train':>9} {'waits to publish':>17} {'transfer':>9}")
    for overlap, runs_of in found.items():
        middle = [statistics.median(getattr(m, name) for m in runs_of) for name in Measured.__slots__]
        step, train, publish, transfer = (1000 * value for value in middle)
        print(f"{overlap!s:>8} {step:>6.0f} ms {train:>6.0f} ms {publish:>14.0f} ms {transfer:>6.0f} ms")
    steps = {o: statistics.median(m.step for m in runs_of) for o, runs_of in found.items()}
    print(f"a step with overlap takes {steps[True] / steps[False]:.2f} of one without")


def settings(arguments: argparse.Namespace, overlap: bool) -> list[str]:
    """A model large enough for its broadcast to take time, and a learner that never waits for data."""
    heads = arguments.width // 64
    return [
        f"model.tiny={{layers: {arguments.layers}, width: {arguments.width}, heads: {heads}}}",
        "warmup.steps=0",
        f"learner.steps={arguments.steps}",
        f"learner.checkpoint.every_steps={arguments.steps}",
        f"weights.overlap={str(overlap).lower()}",
        "staleness.pipeline_depth=4",
        "algorithm.preset=grpo",
        "learner.groups_per_step=16",
        "rollout.engine=emulated",
        "rollout.emulated.median_seconds=0.05",
        "evaluation.every_steps=0",
        "evaluation.prompts=4",
        "evaluation.samples_per_prompt=1",
    ]


def read(rows_file: Path) -> Measured:
    """Medians after the first steps."""
    rows = [json.loads(line) for line in rows_file.read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if row["event"] == "step"][SKIPPED_STEPS:]
    times = [row["elapsed_seconds"] for row in steps]
    return Measured(
        step=statistics.median(b - a for a, b in pairwise(times)),
        train=statistics.median(row["train_seconds"] for row in steps),
        publish=statistics.median(row["publish_seconds"] for row in steps),
        transfer=statistics.median(row["transfer_seconds"] for row in steps),
    )


if __name__ == "__main__":
    main()
