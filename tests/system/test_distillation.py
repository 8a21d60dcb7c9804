"""A whole run that learns from a teacher, with the emulated engine."""

import math
import os
import signal
from pathlib import Path

import pytest
from slipstream.config import TinyModel
from slipstream.learner.policy.tiny import make_tiny_model
from system.driver import running


@pytest.mark.long
def test_a_run_learns_from_a_teacher_that_is_killed_during_the_run(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    make_tiny_model(TinyModel(layers=1, width=32, heads=1, max_tokens=64), teacher, seed=7)
    settings = (
        "rollout.engine=emulated",
        "rollout.emulated.median_seconds=0.05",
        "rollout.max_new_tokens=6",
        "algorithm={preset: grpo, distillation: {kind: reverse, top_k: 4}}",
        f"teacher.path={teacher}",
    )
    with running(tmp_path, *settings, steps=40) as run:
        run.wait_until("some steps", lambda: run.version() >= 3)
        os.kill(int(run.pod("teacher")["pid"]), signal.SIGKILL)
        run.wait_until("the teacher is started again", lambda: "teacher was killed" in run.said())
        before = run.version()
        run.wait_until("more steps", lambda: run.version() >= min(before + 10, 40))
        assert run.finish(seconds=400) == 0, run.said()
        rows = run.rows("step")
        assert [row["step"] for row in rows] == list(range(1, 41))
        assert all(row["kl_teacher"] > 0 and math.isfinite(row["loss"]) for row in rows)
        assert sum(row["loss"] for row in rows[-5:]) < sum(row["loss"] for row in rows[:5])
        summary = run.summary()
        assert (summary["ledger_residual"], summary["orphans"]) == (0, 0)
