"""The cost of stored completions: time of a step with and without them, and time to find some of a million.

    python -m benchmarks.samples [--rounds N] [--groups N] [--steps N] [--completions N]

step    Steps of 64 groups x 8 completions of lognormal lengths (mean 96 tokens) on a Qwen2 of a million
        parameters, the most tokens a second that a learner may have to store: with and without storing, in
        turns. The time of a step that stores begins when the step before is written, so that the thread that
        writes competes with it for the cores; the CPU time of both counts.
read    A run of 10,000 steps x 100 completions of 24 tokens with distinct texts, as its writer leaves it: the
        time until a new process has the first page; of filters, orders and pages over all of it; and the most
        memory of a process that reads so.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from slipstream.config import SamplesConfig
from slipstream.learner.clients import decode_group
from slipstream.learner.training.step import TrainingStep
from slipstream.records import Group
from slipstream.samples.folder import FOLDER
from slipstream.samples.parts import write_part
from slipstream.samples.reader import ORDERS, Filter, Page, SampleReader
from slipstream.samples.table import SCHEMA, make_table, trained_groups
from slipstream.samples.token_values import TokenValues
from slipstream.samples.writer import MERGED_PARTS, SampleWriter
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
LARGEST: Final = """
import sys
from pathlib import Path
from slipstream.samples.reader import ORDERS, Filter, SampleReader
reader = SampleReader(Path(sys.argv[1]))
reader.steps()
reader.completions(Filter(text="nowhere"))
for order in ORDERS:
    reader.completions(Filter(), order=order, descending=True, start=int(sys.argv[2]), count=50)
(line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(int(line.split()[1]) * 1024 / 1e6)
"""
FILTERS: Final[Mapping[str, Filter]] = {
    "steps 4,000 to 4,100": Filter(first_step=4000, last_step=4100),
    "trained": Filter(state="trained"),
    "withheld": Filter(state="withheld"),
    "of a source that is not there": Filter(source="maths"),
    "of one group": Filter(group="g000012345"),
    "reward 0.9 or more": Filter(least_reward=0.9),
    "reward 0.1 or less": Filter(largest_reward=0.1),
    "clipped, reward 0.1 or less": Filter(clipped=True, largest_reward=0.1),
    "staleness 1 or more": Filter(least_staleness=1),
    "clipped": Filter(clipped=True),
    "over age": Filter(over_age=True),
    "truncated": Filter(truncated=True),
}
TEXTS: Final[Mapping[str, Filter]] = {
    "a text in 1 % of them": Filter(text="unusual"),
    "a text in none of them": Filter(text="nowhere"),
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


def read_times(reader: SampleReader, steps: int, completions: int) -> dict[str, float]:
    """Print the time of each query, and return that of the slowest of each kind."""
    print("| of all completions | selected | seconds |\n|---|---|---|")
    deep, step = completions * 9 // 10, steps // 2
    group = reader.completions(Filter(first_step=step, last_step=step)).rows[0]["group"]
    newest = {name: _page_time(reader, name, where) for name, where in FILTERS.items()}
    orders = [
        _page_time(reader, f"all by {order}, {way}, from {start:,} on", Filter(), order, way, start)
        for order in ORDERS
        for way in ("ascending", "descending")
        for start in (0, deep)
    ]
    texts = [_page_time(reader, name, where) for name, where in TEXTS.items()]
    one = _seconds(lambda: reader.completion(step, group, 0))
    listed = _seconds(reader.steps)
    print(f"| one completion with its tokens | 1 | {one:.3f} |")
    print(f"| the list of steps | {len(reader.steps()):,} | {listed:.3f} |")
    return {
        "the slowest filter": max(newest.values()),
        "the slowest order or page": max(orders),
        "the slowest text": max(texts),
        "the filter for a group": newest["of one group"],
        "one completion": one,
        "the list of steps": listed,
    }


def _page_time(
    reader: SampleReader,
    name: str,
    where: Filter,
    order: str = "step",
    way: str = "descending",
    start: int = 0,
) -> float:
    """Print and return the time of a page."""

    def page() -> Page:
        return reader.completions(where, order=order, descending=way == "descending", start=start)

    seconds = _seconds(page)
    print(f"| {name} | {page().total:,} | {seconds:.3f} |")
    return seconds


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
        measured = read_times(SampleReader(Path(folder) / "run"), arguments.steps, arguments.completions)
        largest = subprocess.run(
            [sys.executable, "-c", LARGEST, str(Path(folder) / "run"), str(arguments.completions * 9 // 10)],
            check=True,
            env=os.environ,
            capture_output=True,
            text=True,
        )
    print()
    print_ratio("time of a step that stores / of one that does not", wall)
    print_ratio("CPU time of a step that stores / of one that does not", cpu)
    print_ratio("seconds until a new process has the first page", opened)
    for name, seconds in measured.items():
        print_ratio(f"seconds of {name}", seconds)
    print_ratio("most memory of a process that reads, MB", float(largest.stdout))
    return 0


if __name__ == "__main__":
    sys.exit(main())
