"""Training on batches of a chosen age, in one process, with a sampler in place of the engine."""

import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from slipstream.cli.launch.cold_start import cached_model
from slipstream.config import RunConfig, parse_config
from slipstream.learner.policy.loading import load_policy
from slipstream.learner.policy.model import Policy
from slipstream.learner.training.step import TrainingStep
from slipstream.prompts import make_source
from slipstream.records import Group
from slipstream.tokens import load_tokens

from benchmarks.circle import Job
from benchmarks.sampler import Sampler

MEASURED = ("clip_fraction_low", "clip_fraction_high", "zero_gradient_fraction", "ess", "kl_rollout")
"""Metrics of the learner whose means `train` returns."""


def warmed_up(job: Job) -> Path:
    """Return the cold-started model of a job, which is created if it does not exist."""
    model = cached_model(parse_config(job))
    if not (model / "config.json").exists():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "job.yaml"
            file.write_text(yaml.safe_dump(dict(job)), encoding="utf-8")
            command = [sys.executable, "-m", "slipstream.cli", "warmup", str(file)]
            subprocess.run(command, check=True, stdout=sys.stderr)
    return model


def cold_started(model: Path, config: RunConfig) -> tuple[Policy, Sampler]:
    """Return the policy from which every run starts, and its sampler."""
    policy = load_policy(model, source=model, device=torch.device("cpu"), dtype=torch.float32)
    return policy, Sampler(policy, load_tokens(model, max_new_tokens=config.rollout.max_new_tokens), config)


def train(
    step: TrainingStep, sampler: Sampler, config: RunConfig, *, depth: int, seed: int
) -> dict[str, Any]:
    """Train for `learner.steps` steps; each batch is sampled `depth` policy versions before its step.

    Version 0 samples the batches of the first `depth` steps too, so these batches are younger. Returns the
    mean of each metric of MEASURED, the age of each batch in versions, and its mean evaluation reward.
    """
    source = make_source(config.data, seed=seed)
    waiting: deque[list[Group]] = deque()
    sampled, rewards, ages, metrics = 0, [], [], []
    for version in range(config.learner.steps):
        while len(waiting) <= depth and sampled < config.learner.steps:
            first = sampled * config.learner.groups_per_step
            prompts = [source.training(first + index) for index in range(config.learner.groups_per_step)]
            draws = seed * 1_000_000 + sampled
            size = config.rollout.group_size
            waiting.append(sampler.groups(prompts, version=version, size=size, seed=draws))
            sampled += 1
        batch = waiting.popleft()
        result = step.train(batch, version=version)
        rewards.append(round(share_right(batch, config.evaluation.reward), 4))
        ages.append(result.staleness_mean)
        metrics.append(result.metrics)
    means = {name: statistics.fmean(each[name] for each in metrics) for name in MEASURED}
    return {**means, "ages": ages, "batch_accuracy": rewards}


def share_right(groups: Sequence[Group], reward: str) -> float:
    """Return the mean of one reward over all completions."""
    values = [r.value for group in groups for c in group.completions for r in c.rewards if r.name == reward]
    return statistics.fmean(values)
