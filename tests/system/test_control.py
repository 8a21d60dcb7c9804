"""A real run is paused, saved, resumed, and stopped while it is paused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from system.driver import Run, running

pytestmark = pytest.mark.long
EMULATED = ("rollout.engine=emulated", "rollout.emulated.median_seconds=0.05")
RARELY = "learner.checkpoint.every_steps=1000"
STOP_SECONDS, START_SECONDS = 60, 400


def control(run: Run, *arguments: str) -> str:
    """Execute `slipstream control`, and return what it prints."""
    name, *options = arguments
    command = [sys.executable, "-m", "slipstream.cli", "control", name, str(run.run_dir), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pid_of(run: Run, pod: str) -> int | None:
    """Return the process id in the ready file of a pod; None while it is being started again."""
    try:
        pid: int = run.pod(pod)["pid"]
    except FileNotFoundError:
        return None
    return pid


def quiet(run: Run) -> int:
    """Wait until a paused run has trained on all that was in work, and return its version."""
    run.wait_until("the learner's word on the pause", lambda: "paused by " in run.said())
    version = run.version()
    time.sleep(1.5)
    assert run.version() == version
    return version


def test_a_run_is_paused_saved_and_resumed_and_no_group_is_lost(tmp_path: Path) -> None:
    impatient = "learner.sample_timeout_seconds=6"
    with running(tmp_path, *EMULATED, RARELY, impatient, steps=100_000) as run:
        run.wait_until("third step", lambda: run.version() >= 3, seconds=START_SECONDS)
        assert "paused: no further group begins" in control(run, "pause", "--reason", "new disk")
        version = quiet(run)
        time.sleep(7)  # longer than learner.sample_timeout_seconds
        assert f"the checkpoint of step {version} is durable" in control(run, "checkpoint")
        assert (run.run_dir / f"checkpoints/step_{version:08d}/state.json").exists()
        killed = run.pod("replay")["pid"]
        os.kill(killed, signal.SIGKILL)
        run.wait_until("replay again", lambda: pid_of(run, "replay") not in (None, killed))
        assert run.version() == version, "a pause outlives the process of replay"
        assert control(run, "resume") == "resumed\n"
        run.wait_until("two steps more", lambda: run.version() >= version + 2)
        assert "resumed by " in run.said()
        control(run, "checkpoint")
        run.interrupt()
        assert run.finish(seconds=STOP_SECONDS) == 0, run.said()
    assert run.summary()["ledger_residual"] == 0


def test_a_run_that_is_stopped_while_it_is_paused_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    with running(tmp_path, *EMULATED, steps=100_000) as run:
        run.wait_until("third step", lambda: run.version() >= 3, seconds=START_SECONDS)
        control(run, "pause")
        stopped_at = quiet(run)
        run.interrupt()
        assert run.finish(seconds=STOP_SECONDS) == 0, run.said()
    with running(tmp_path, *EMULATED, "--resume", steps=stopped_at + 2) as again:
        assert again.finish() == 0, again.said()
    assert "the run was paused, and goes on" in again.output.read_text()
    assert again.summary()["ledger_residual"] == 0
    assert again.summary()["ledger"]["trained"] == (stopped_at + 2) * 8
