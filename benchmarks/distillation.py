"""A teacher against rewards alone, at one number of samples: held-out accuracy of the example's policy.

    python benchmarks/distillation.py [--steps N] [--groups N] [--rates X ...] [--seeds N ...]
                                      [--ways NAME ...]

The learner, the task, the cold-started policy and the teacher are those of examples/distillation.yaml: the
teacher is a process that is asked over gRPC. The engine is a sampler in this process, and training is
synchronous, so that every way sees as many samples of its own policy. Before each run the policy is that of
the cold start.
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
from itertools import product
from pathlib import Path
from typing import Any

import torch
from sampler import Sampler
from slipstream.cli.warmup import cached_model
from slipstream.config import RunConfig, load_config
from slipstream.learner.policy.loading import without_progress_bars
from slipstream.learner.teacher import teaching
from slipstream.learner.training.step import TrainingStep
from slipstream.tasks import make_source
from slipstream.telemetry.logs import Log
from slipstream.types import Group
from staleness_quality import cold_started, share_right

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "distillation.yaml"
START_SECONDS = 120.0
REWARDS = "rewards alone"
WAYS: Mapping[str, Mapping[str, Any] | None] = {
    REWARDS: None,
    "advantage": {"kind": "advantage"},
    "reverse": {"kind": "reverse", "top_k": 8},
    "forward": {"kind": "forward", "top_k": 8},
    "mixed": {"kind": "mixed", "top_k": 8},
    "advantage and rewards": {"kind": "advantage", "reward_weight": 1.0},
}


def configured(way: str, arguments: argparse.Namespace, rate: float, address: str, model: Path) -> RunConfig:
    """The example with one way to learn."""
    algorithm = {"preset": "cispo", "shaping": None, "distillation": WAYS[way]}
    return load_config(
        EXAMPLE,
        [
            "model.tiny=null",
            f"model.path={model}",
            f"algorithm={json.dumps(algorithm)}",
            f"teacher.address={address}",
            f"learner.steps={arguments.steps}",
            f"learner.groups_per_step={arguments.groups}",
            f"learner.learning_rate={rate}",
            "learner.device=cpu",
        ],
    )


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
    """The groups with what the teacher says, if one is asked."""
    async with teaching(config, log=Log(pod="benchmark")) as teacher:
        return groups if teacher is None else await teacher.teach(groups)


@contextmanager
def teacher_process() -> Iterator[str]:
    """The address of the example's teacher. Errors: SystemExit when it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "slipstream.teacher", "--config", str(EXAMPLE)]
        process = subprocess.Popen([*command, "--ready-file", str(ready), "--parent", str(os.getpid())])
        try:
            deadline = time.monotonic() + START_SECONDS
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the teacher did not start; see the head of examples/distillation.yaml")
                time.sleep(0.05)
            yield json.loads(ready.read_text(encoding="utf-8"))["address"]
        finally:
            process.terminate()
            process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=64, help="groups of a step")
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4], help="learning rates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS))
    return parser.parse_args()


def main() -> None:
    """Print a line for each way and learning rate."""
    arguments = _arguments()
    os.chdir(ROOT)
    torch.set_num_threads(1)
    without_progress_bars()
    example = load_config(EXAMPLE)
    model = cached_model(example)
    if not (model / "config.json").exists():
        sys.exit(f"no cold-started policy in {model}; run `slipstream warmup examples/distillation.yaml`")
    samples = arguments.steps * arguments.groups * example.rollout.group_size
    with teacher_process() as address:
        config = configured(REWARDS, arguments, arguments.rates[0], address, model)
        before = accuracy(cold_started(model, config)[1], config)
        assert example.teacher.path is not None, "the teacher has started"
        best = accuracy(cold_started(example.teacher.path, config)[1], config)
        print(f"{samples:,} samples; accuracy before {before:.3f}, of the teacher {best:.3f}")
        print(f"{'way':<22} {'rate':>8} {'accuracy':>9}", flush=True)
        for way, rate in product(arguments.ways, arguments.rates):
            runs = [
                run(configured(way, arguments, rate, address, model), model, seed=seed)
                for seed in arguments.seeds
            ]
            print(f"{way:<22} {rate:>8g} {statistics.fmean(runs):>9.3f}", flush=True)


if __name__ == "__main__":
    main()
