"""A grace period that is too short for a checkpoint is reported, at the start and after checkpoints."""

import asyncio
from pathlib import Path
from typing import Any

import torch
from learner.fakes import config_with, contrast, said, silent_log
from slipstream.config import CheckpointConfig
from slipstream.learner.checkpoints.checkpoint import CheckpointWriter
from slipstream.learner.checkpoints.shards import whole_bytes
from slipstream.learner.lockstep import Lockstep
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Alone
from slipstream.learner.saving import Saver, expected_bytes, too_large, too_slow
from slipstream.learner.training.state import collect
from slipstream.learner.training.step import TrainingStep
from slipstream.records import START
from slipstream.telemetry.metrics import Metrics


class Confirmed:
    """A replay that takes note of nothing."""

    async def confirm_checkpoint(self, version: int) -> None:
        """Accept it."""


def test_the_size_before_the_first_step_is_that_of_a_checkpoint_after_it(policy: Policy) -> None:
    training = TrainingStep(policy, config_with())
    before = expected_bytes(collect(training))
    training.train([contrast("a")], version=0)
    after = collect(training)
    steps = {name: tensor for name, tensor in after.items() if name.startswith("optimizer/step/")}
    assert before == expected_bytes(after) - whole_bytes(steps)


def test_a_size_or_a_time_beyond_half_the_grace_period_is_named() -> None:
    assert too_large(1_600_000_000, stop_seconds=None) is None
    assert too_large(1_600_000_000, stop_seconds=32.0) is None
    assert too_large(1_600_000_000, stop_seconds=31.0) == (
        "a checkpoint is about 1.6 GB, which takes 16 s at 100 MB/s, and the learner is killed 31 s after "
        "SIGTERM"
    )
    assert too_slow(15.0, stop_seconds=30.0) is None
    assert too_slow(16.0, stop_seconds=30.0) == (
        "the checkpoint took 16 s, and the learner is killed 30 s after SIGTERM"
    )


def test_the_learner_warns_before_and_after_a_checkpoint(policy: Policy, tmp_path: Path) -> None:
    training, log, replay = TrainingStep(policy, config_with()), silent_log(), Confirmed()
    lockstep = Lockstep(Alone(), training, None, CheckpointWriter(tmp_path, Alone()))  # type: ignore[arg-type]
    untyped: Any = replay
    saver = Saver(
        root=tmp_path,
        config=CheckpointConfig(stop_seconds=1e-6),
        lockstep=lockstep,
        replay=untyped,
        model_fingerprint="f",
        durable=None,
        metrics=Metrics(),
        log=log,
    )
    saver.warn_of_size()
    assert "raise the grace period (chart: learner.stopSeconds)" in said(log)
    assert "a checkpoint is about 0.0 GB" in said(log)
    torch.manual_seed(0)
    asyncio.run(saver.save(1, START, None))
    assert "the checkpoint took 0 s, and the learner is killed 1e-06 s after SIGTERM" in said(log)
