"""The time of the loss lab on a large batch, without weights.

    python -m benchmarks.lab [--tokens N] [--slowest N]

A stored step of completions of lognormal lengths (mean 500 tokens) in groups of 8, of several ages, with
ratios as those of a run that is some versions ahead. A new process computes every objective, correction and
aggregation on it, and draws the picture. CPU seconds do not depend on what else the machine does. The table
has the times of the slowest losses, each in this process.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from slipstream.config import load_config
from slipstream.lab.batch import Batch
from slipstream.lab.compare import candidates, tried
from slipstream.lab.report import read_batch
from slipstream.records import Group
from slipstream.samples.parts import write_part
from slipstream.samples.reader import SampleReader
from slipstream.samples.table import SCHEMA, make_table, trained_groups
from slipstream.samples.token_values import TokenValues
from slipstream.samples.writer import FOLDER

from benchmarks.learner_step.lognormal import lognormal_groups
from benchmarks.ratio import print_ratio

STEP = 8
GROUP_SIZE = 8
MEAN_TOKENS = 500
RUN: dict[str, Any] = {
    "algorithm": {"preset": "cispo"},
    "rewards": [{"name": "exact_match"}],
    "rollout": {"max_new_tokens": 4096},
    "staleness": {"max_staleness": 4},
}


def store_step(folder: Path, tokens: int) -> None:
    """Write a run with one stored step of about so many tokens."""
    (folder / "config.yaml").write_text(yaml.safe_dump(RUN))
    groups = lognormal_groups(
        max(1, tokens // (GROUP_SIZE * MEAN_TOKENS)), GROUP_SIZE, vocabulary=1000, mean=MEAN_TOKENS
    )
    groups = [_aged(group, STEP - 1 - index % 6) for index, group in enumerate(groups)]
    sizes = np.array([completion.sampled for group in groups for completion in group.completions])
    count = int(sizes.sum())
    randoms = np.random.default_rng(0)
    rollout_N = np.concatenate(
        [np.array(s.logprobs, np.float32) for g in groups for c in g.completions for s in c.segments]
    )
    advantages_N = np.repeat(randoms.normal(0.0, 1.0, len(sizes)), sizes).astype(np.float32)
    values = TokenValues(
        completion_N=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        order_N=np.concatenate([np.arange(size, dtype=np.int32) for size in sizes]),
        logprobs_N=rollout_N + randoms.normal(0.0, 0.15, count).astype(np.float32),
        reference_N=None,
        entropies_N=np.abs(randoms.normal(1.0, 0.3, count)).astype(np.float32),
        advantages_N=advantages_N,
        gates_N=np.ones(count, np.float32),
        sides_N=np.zeros(count, np.int8),
        trained_N=np.ones(count, np.bool_),
    )
    table = make_table(STEP, trained_groups(groups), values, weights={"exact_match": 1.0}, time=0.0)
    (folder / FOLDER).mkdir()
    write_part(folder / FOLDER, STEP, STEP, [table], SCHEMA)


def _aged(group: Group, version: int) -> Group:
    """Return the group as if this version had sampled it."""
    return replace(
        group,
        completions=tuple(
            replace(each, spans=tuple(replace(span, version=version) for span in each.spans))
            for each in group.completions
        ),
    )


def times_of(folder: Path) -> tuple[Batch, dict[str, float]]:
    """Return the batch, and the seconds of reading it and of each loss."""
    began = time.perf_counter()
    batch = read_batch(SampleReader(folder), folder, None)
    times = {"reading the batch": time.perf_counter() - began}
    config = load_config([folder / "config.yaml"], [])
    longest = config.rollout.max_new_tokens
    own = config.algorithm.resolved_loss(max_staleness=config.staleness.max_staleness, max_new_tokens=longest)
    for candidate in candidates(own, longest=longest):
        began = time.perf_counter()
        with suppress(ValueError):  # a loss that this batch cannot have
            tried(batch, candidate.loss or own, [])
            times[f"{candidate.axis} {candidate.name}"] = time.perf_counter() - began
    return batch, times


def command_seconds(folder: Path, *, as_json: bool) -> tuple[float, float]:
    """Return time and CPU time of the command in a new process."""
    settings = {"run_dir": str(folder), "weights": False, "json": as_json}
    began, used = time.perf_counter(), _cpu_of_children()
    subprocess.run(
        [sys.executable, "-m", "slipstream.lab.report", json.dumps(settings)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ,
    )
    return time.perf_counter() - began, _cpu_of_children() - used


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=500_000)
    parser.add_argument("--slowest", type=int, default=8)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        store_step(folder, arguments.tokens)
        batch, times = times_of(folder)
        print(f"{batch.tokens:,} tokens of {batch.completions:,} completions.\n")
        print("| part | seconds |\n|---|---|")
        for part in sorted(times, key=lambda part: -times[part])[: arguments.slowest]:
            print(f"| {part} | {times[part]:.2f} |")
        print()
        for name, as_json in (("its picture", False), ("--json", True)):
            wall, cpu = command_seconds(folder, as_json=as_json)
            print_ratio(f"seconds of the command with {name}", wall)
            print_ratio(f"CPU seconds of the command with {name}", cpu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
