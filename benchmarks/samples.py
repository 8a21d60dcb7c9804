"""The cost of stored completions: time of a step with and without them, and time to find some of a million.

    python -m benchmarks.samples [--rounds N] [--groups N] [--steps N] [--completions N]

step    Steps of 64 groups x 8 completions of lognormal lengths (mean 96 tokens) on a Qwen2 of a million
        parameters, the most tokens a second that a learner may have to store: with and without storing, in
        turns. The time of a step that stores begins when the step before is written, so that the thread that
        writes competes with it for the cores; the CPU time of both counts.
read    A run of 10,000 steps x 100 completions of 24 tokens with distinct texts, as its writer leaves it: the
        time until a new process has the first page, and of filters over all of it.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from slipstream.config import SamplesConfig
from slipstream.learner.clients import decode_group
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Group
from slipstream.samples.parts import write_part
from slipstream.samples.reader import Filter, SampleReader
from slipstream.samples.table import SCHEMA, make_table, trained_groups
from slipstream.samples.token_values import TokenValues
from slipstream.samples.writer import FOLDER, MERGED_PARTS, SampleWriter
from slipstream.telemetry.logs import Log

from benchmarks.learner_step.gradient_cost import configured, tiny_policy, tiny_weights
from benchmarks.learner_step.lognormal import lognormal_groups
from benchmarks.ratio import print_ratio

WORDS: Final = ("sum", "carry", "digit", "so", "the", "answer", "is", "wait", "check", "again", "add", "to")
FIRST_PAGE: Final = """
import sys, time
from pathlib import Path
from slipstream.samples.reader import Filter, SampleReader
reader = SampleReader(Path(sys.argv[1]))
assert reader.steps() and reader.completions(Filter(), descending=True).rows
"""
FILTERS: Final[dict[str, tuple[Filter, str]]] = {
    "no filter, newest first": (Filter(), "step"),
    "the largest ratios": (Filter(), "largest_ratio"),
    "clipped, reward below 0.1": (Filter(clipped=True, largest_reward=0.1), "step"),
    "steps 4,000 to 4,100": (Filter(first_step=4000, last_step=4100), "reward"),
    "withheld": (Filter(state="withheld"), "step"),
    "a text in 1 % of them": (Filter(text="unusual"), "step"),
    "a text in none of them": (Filter(text="nowhere"), "step"),
}


def step_cost(groups: Sequence[Group], rounds: int, folder: Path) -> tuple[float, float, int]:
    """Return the ratios of time and CPU time of a step with and without storing, and its tokens."""
    policy = tiny_policy(tiny_weights(folder / "model"))
    config = configured(row_tokens=512)
    without = config.learner.samples.model_copy(update={"share": 0.0})
    learner = config.learner.model_copy(update={"samples": without})
    plain = TrainingStep(policy, config.model_copy(update={"learner": learner}))
    storing = TrainingStep(policy, config)
    writer = SampleWriter(
        folder,
        SamplesConfig(),
        weights={"exact_match": 1.0},
        version=0,
        decode=decode_group,
        log=Log(pod="benchmark"),
    )
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "storing": []}
    for number in range(rounds + 1):
        for name, training in (("plain", plain), ("storing", storing)):
            wall, cpu = time.perf_counter(), time.process_time()
            result = training.train(groups, version=number)
            if name == "storing":
                writer.put(number + 1, groups, result.token_values)
                writer.wait()
            if number:  # the first round warms up
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    writer.close()
    wall, cpu = (
        statistics.median(s[i] / p[i] for s, p in zip(times["storing"], times["plain"], strict=True))
        for i in (0, 1)
    )
    return wall, cpu, sum(group.tokens for group in groups)


def a_million(folder: Path, steps: int, completions: int) -> int:
    """Write a run of so many steps with so many completions in all; return its bytes."""
    source = random.Random(0)
    groups = lognormal_groups(
        completions // steps // 4, 4, vocabulary=1000, sigma=0.01, shortest=24, longest=24
    )
    tokens = sum(group.tokens for group in groups)
    places = np.repeat(np.arange(len(groups) * 4, dtype=np.int32), 24)
    randoms = np.random.default_rng(0)

    def floats() -> Any:
        return randoms.normal(-1.0, 0.3, tokens).astype(np.float32)

    def table_of(step: int) -> pa.Table:
        values = TokenValues(
            completion_N=places,
            order_N=np.tile(np.arange(24, dtype=np.int32), len(groups) * 4),
            logprobs_N=floats(),
            reference_N=floats(),
            entropies_N=floats(),
            advantages_N=floats(),
            gates_N=floats(),
            sides_N=(randoms.random(tokens) < 0.02).astype(np.int8),
            trained_N=np.ones(tokens, np.bool_),
        )
        table = make_table(
            step, trained_groups(groups), values, weights={"exact_match": 1.0}, time=float(step)
        )
        count = table.num_rows
        texts = [
            " ".join(source.choices(WORDS, k=30))
            + (" unusual" if source.random() < 0.01 else "")
            + f" {step}-{i}"
            for i in range(count)
        ]
        states = ["withheld" if source.random() < 0.01 else "trained" for _ in range(count)]
        names = [f"g{step * len(groups) + i // 4:09}" for i in range(count)]
        columns = {
            "text": texts,
            "state": states,
            "group": names,
            "reward": [source.random() for _ in range(count)],
        }
        for name, column in columns.items():
            at = SCHEMA.get_field_index(name)
            table = table.set_column(at, SCHEMA.field(at), pa.array(column, SCHEMA.field(at).type))
        return table

    (folder / FOLDER).mkdir(parents=True)
    for first, last in _parts(steps):
        write_part(folder / FOLDER, first, last, map(table_of, range(first, last + 1)), SCHEMA)
    return sum(file.stat().st_size for file in (folder / FOLDER).iterdir())


def _parts(steps: int) -> Iterator[tuple[int, int]]:
    """Yield the parts that a writer leaves after so many steps."""
    first = 1
    for size in (MERGED_PARTS**2, MERGED_PARTS, 1):
        while first + size - 1 <= steps:
            yield first, first + size - 1
            first += size


def _seconds(work: Callable[[], object]) -> float:
    """Return the time of the quickest of three calls."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both parts, and print tables and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--completions", type=int, default=1_000_000)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        groups = lognormal_groups(arguments.groups, 8, vocabulary=30)
        wall, cpu, tokens = step_cost(groups, arguments.rounds, Path(folder) / "step")
        stored = a_million(Path(folder) / "run", arguments.steps, arguments.completions)
        print(f"Steps of {tokens:,} tokens. A run of {arguments.steps:,} steps, {stored / 1e9:.2f} GB.\n")
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", FIRST_PAGE, str(Path(folder) / "run")], check=True, env=os.environ
        )
        opened = time.perf_counter() - began
        reader = SampleReader(Path(folder) / "run")
        print("| of all completions | found | seconds |\n|---|---|---|")
        slowest = 0.0
        for name, (where, order) in FILTERS.items():
            total = reader.completions(where, order=order, descending=True).total
            seconds = _seconds(lambda: reader.completions(where, order=order, descending=True))  # noqa: B023
            slowest = max(slowest, seconds)
            print(f"| {name} | {total:,} | {seconds:.2f} |")
    print()
    print_ratio("time of a step that stores / of one that does not", wall)
    print_ratio("CPU time of a step that stores / of one that does not", cpu)
    print_ratio("seconds until a new process has the first page", opened)
    print_ratio("seconds of the slowest filter", slowest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
