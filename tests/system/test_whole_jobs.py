"""A benchmark states its whole configuration: no example and no default decides what it measures."""

import argparse
import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from slipstream.algorithms.spec import Shaping
from slipstream.config import RunConfig, parse_config

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OF_EXAMPLES = {
    "clip_fractions.py",
    "distillation.py",
    "examples.py",
    "quickstart.py",
    "figures.py",
    "smollm2.py",
}
"""The scripts that measure an example."""
STATED = {
    "algorithm": {
        *("preset", "advantage", "objective", "correction", "kl", "drift_penalty", "entropy", "top_entropy"),
        *("aggregation", "shaping"),
    },
    "staleness": {"pipeline_depth", "max_staleness"},
    "rollout": {
        *("workers", "engine", "group_size", "max_groups", "max_new_tokens", "temperature", "threads"),
    },
    "learner": {
        *("steps", "groups_per_step", "minibatches", "learning_rate", "schedule", "max_tokens_per_row"),
        *("share_prompts", "threads", "ranks", "least_step_seconds"),
    },
    "weights": {"overlap"},
    "evaluation": {"every_steps", "prompts", "samples_per_prompt", "reward"},
}
"""Keys that decide how much work a step is, and which process waits for another."""


@pytest.fixture(scope="module")
def part() -> Any:
    """Return a function that imports a module of the benchmarks."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def jobs(part: Any) -> dict[str, RunConfig]:
    """Return the configurations of all benchmarks that train."""
    asynchronous, overlap, staleness = (
        part("async_vs_sync"),
        part("overlap"),
        part("staleness_quality.__main__"),
    )
    sizes = argparse.Namespace(steps=3, layers=2, width=64, group_size=2)
    setting = staleness.Setting(objective="ppo_clip", depth=2, seed=0, steps=3, groups=3, learning_rate=1e-3)
    configurations: dict[str, Mapping[str, Any]] = {
        "async, emulated": asynchronous.at_depth(asynchronous.emulated_job(0.4), 0, 3),
        "async, vllm": asynchronous.at_depth(asynchronous.ADDITION, 2, 3),
        "overlap": overlap.job(sizes, overlap=True),
    }
    return {name: parse_config(job) for name, job in configurations.items()} | {"staleness": setting.config()}


def test_every_benchmark_states_the_keys_that_decide_its_figure(part: Any) -> None:
    for name, config in jobs(part).items():
        for section, keys in STATED.items():
            missing = keys - getattr(config, section).model_fields_set
            assert not missing, f"{name}: {section} does not state {missing}"


def test_no_benchmark_filters_or_shapes_its_batches(part: Any) -> None:
    for name, config in jobs(part).items():
        shaping = config.algorithm.resolved_shaping(max_new_tokens=config.rollout.max_new_tokens)
        assert shaping == Shaping(), name


@pytest.mark.parametrize(
    "script", sorted(str(path.relative_to(BENCHMARKS)) for path in BENCHMARKS.rglob("*.py"))
)
def test_no_benchmark_reads_an_example_except_that_of_the_example(script: str) -> None:
    text = (BENCHMARKS / script).read_text(encoding="utf-8")
    assert script in OF_EXAMPLES or not re.search(r'examples["/]', text)


def test_an_ideal_asynchronous_run_is_limited_only_by_its_places(part: Any) -> None:
    # 8 places, 2 samples each, every 0.4 s; a synchronous step waits for the slowest of 8 and for the learner
    ideal = part("async_vs_sync").ideal(0.4, draws=80_000)
    assert ideal[2] == pytest.approx(40)
    assert 2.2 < ideal[2] / ideal[0] < 2.5
    assert part("async_vs_sync").ideal(1.0, draws=80_000)[0] == pytest.approx(ideal[0] * 0.4)
