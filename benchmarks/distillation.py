"""A teacher against rewards alone, at one number of samples: held-out accuracy of the example's policy.

    python -m benchmarks.distillation [--samples N] [--seeds N ...] [--ways NAME ...]

The learner, the task, the cold-started policy and the teacher are those of examples/distillation.yaml: the
teacher is a process that is asked over gRPC. The engine is a sampler in this process, and training is
synchronous, so that every way sees as many samples of its own policy. Before each run the policy is that of
the cold start; it and the teacher are trained first where they are not there yet. A teacher needs no groups:
its ways ask each prompt once. Rewards need them, and are tried with many small steps and with few large ones,
each at two learning rates.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from slipstream.cli.launch.cold_start import cached_model
from slipstream.config import RunConfig, load_config
from slipstream.learner.policy.loading import without_progress_bars
from slipstream.learner.teacher import open_teacher_client
from slipstream.learner.training.step import TrainingStep
from slipstream.prompts import make_source
from slipstream.records import Group
from slipstream.telemetry.logs import Log

from benchmarks.aged_training import cold_started, share_right
from benchmarks.ratio import print_ratio
from benchmarks.sampler import Sampler

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "distillation.yaml"
START_SECONDS = 120.0
TOP_K = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A method of learning from the same number of samples."""

    distillation: Mapping[str, Any] | None
    completions: int
    """Samples of a step."""
    group_size: int
    rate: float

    def config(self, *, samples: int, address: str, model: Path) -> RunConfig:
        """Return the example's configuration with this method."""
        algorithm = {"preset": "cispo", "shaping": None, "distillation": self.distillation}
        return load_config(
            EXAMPLE,
            [
                "model.tiny=null",
                f"model.path={model}",
                f"algorithm={json.dumps(algorithm)}",
                f"teacher.address={address}",
                f"rollout.group_size={self.group_size}",
                f"learner.steps={samples // self.completions}",
                f"learner.groups_per_step={self.completions // self.group_size}",
                f"learner.learning_rate={self.rate}",
                "learner.device=cpu",
            ],
        )


def _by_teacher(kind: str, rate: float = 1e-3) -> Way:
    distillation = {"kind": kind} if kind == "advantage" else {"kind": kind, "top_k": TOP_K}
    return Way(distillation=distillation, completions=64, group_size=1, rate=rate)


REWARDS = tuple(
    (f"rewards alone, {completions} a step, rate {rate:g}", completions, rate)
    for completions, rate in product((64, 512), (1e-4, 3e-4))
)
WAYS: Mapping[str, Way] = {
    "reverse": _by_teacher("reverse"),
    "forward": _by_teacher("forward"),
    "mixed": _by_teacher("mixed"),
    "advantage": _by_teacher("advantage", 1e-4),
} | {
    name: Way(distillation=None, completions=completions, group_size=8, rate=rate)
    for name, completions, rate in REWARDS
}


def run(config: RunConfig, model: Path, *, seed: int) -> float:
    """Train from the cold start; returns the accuracy."""
    policy, sampler = cold_started(model, config)
    training = TrainingStep(policy, config)
    source = make_source(config.data, seed=seed)
    per_step = config.learner.groups_per_step
    for version in range(config.learner.steps):
        prompts = [source.training(version * per_step + index) for index in range(per_step)]
        draws = seed * 1_000_000 + version
        groups = sampler.groups(prompts, version=version, size=config.rollout.group_size, seed=draws)
        training.train(asyncio.run(taught(config, groups)), version=version)
    return accuracy(sampler, config)


def accuracy(sampler: Sampler, config: RunConfig) -> float:
    """Share of right answers to the held-out prompts, sampled at the training temperature."""
    source = make_source(config.data, seed=config.seed)
    prompts = [source.held_out(index) for index in range(config.evaluation.prompts)]
    size = config.evaluation.samples_per_prompt
    return share_right(sampler.groups(prompts, version=0, size=size, seed=0), config.evaluation.reward)


async def taught(config: RunConfig, groups: list[Group]) -> list[Group]:
    """Return the groups, with the logprobs of the teacher if the method has one."""
    async with open_teacher_client(config, log=Log(pod="benchmark")) as teacher:
        return groups if teacher is None else await teacher.teach(groups)


@contextmanager
def teacher_process() -> Iterator[str]:
    """Start the example's teacher, and yield its address. Errors: SystemExit if it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "slipstream.teacher", "--config", str(EXAMPLE)]
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready), "--parent", str(os.getpid())], stdout=sys.stderr
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the teacher did not start; its log says why")
                time.sleep(0.05)
            yield json.loads(ready.read_text(encoding="utf-8"))["address"]
        finally:
            process.terminate()
            process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=20_480, help="completions of each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS))
    return parser.parse_args()


def main() -> None:
    """Print a row for each way, and the ratios."""
    arguments = _arguments()
    os.chdir(ROOT)
    torch.set_num_threads(1)
    without_progress_bars()
    example = load_config(EXAMPLE)
    model, teacher = cached_model(example), example.teacher.path
    assert teacher is not None, "the example names its teacher"
    if not (teacher / "config.json").exists():
        _warm_up("addition.yaml", "--steps=600", "--set=warmup.label_smoothing=0", f"--output={teacher}")
    if not (model / "config.json").exists():
        _warm_up(EXAMPLE.name)
    accuracies: dict[str, list[float]] = {}
    with teacher_process() as address:
        before = accuracy(cold_started(model, example)[1], example)
        best = accuracy(cold_started(teacher, example)[1], example)
        print(f"{arguments.samples:,} samples; accuracy before {before:.3f}, of the teacher {best:.3f}.\n")
        print("| way | steps | groups x size | rate | accuracy | by seed |", flush=True)
        print("|---|---|---|---|---|---|", flush=True)
        for name in arguments.ways:
            way = WAYS[name]
            config = way.config(samples=arguments.samples, address=address, model=model)
            accuracies[name] = [run(config, model, seed=seed) for seed in arguments.seeds]
            by_seed = ", ".join(f"{value:.3f}" for value in accuracies[name])
            groups = f"{config.learner.groups_per_step} x {way.group_size}"
            kind = "rewards alone" if way.distillation is None else f"`{name}`"
            mean = statistics.fmean(accuracies[name])
            print(
                f"| {kind} | {config.learner.steps} | {groups} | {way.rate:g} | {mean:.3f} | {by_seed} |",
                flush=True,
            )
    print()
    _print_ratios({name: statistics.fmean(values) for name, values in accuracies.items()}, before)


def _warm_up(example: str, *options: str) -> None:
    """Make the cold start, as the comment at the top of the example describes."""
    command = [sys.executable, "-m", "slipstream.cli", "warmup", str(EXAMPLE.parent / example), *options]
    subprocess.run(command, check=True, stdout=sys.stderr)


def _print_ratios(accuracies: Mapping[str, float], before: float) -> None:
    """Print the ratios of each method with a teacher to the initial policy and to the best other method."""
    by_rewards = [value for name, value in accuracies.items() if WAYS[name].distillation is None]
    for name, value in accuracies.items():
        if WAYS[name].distillation is not None:
            print_ratio(f"accuracy by {name} / before", value / before)
            if by_rewards:
                print_ratio(f"accuracy by {name} / the best of rewards alone", value / max(by_rewards))


if __name__ == "__main__":
    main()
