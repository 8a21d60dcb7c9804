"""Processes that are killed, paused or terminated, in each phase of a run."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from faults.driver import FaultyRun, faulty, wait_for_end
from faults.phases import PHASES

STEPS = 12
SLOWLY = ("learner.least_step_seconds=0.2", "evaluation.prompts=16")
RESTARTED = ("replay", "verifier", "rollout-0", "actor-0")
STOPPED_SECONDS = 5.0
LONG_STOP_SECONDS = 30.0
NOTICED_SECONDS = 8.0
"""The time after which the learner has dropped a paused rollout; docs/deadlines.md says 7 s."""
DISTURBANCES = [
    (name, number, phase)
    for name in (*RESTARTED, "learner", "redis")
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
    for phase in PHASES
    if not (name == "redis" and phase == "starting")
]
NAMES = {signal.SIGKILL: "kill", signal.SIGTERM: "terminate", signal.SIGSTOP: "stop"}
pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("name", "number", "phase"),
    DISTURBANCES,
    ids=lambda value: NAMES.get(value, value) if isinstance(value, signal.Signals) else str(value),
)
def test_a_disturbed_process_loses_and_repeats_no_group_in_any_phase(
    tmp_path: Path, name: str, number: signal.Signals, phase: str
) -> None:
    with faulty(tmp_path, *SLOWLY, steps=STEPS) as run:
        run.wait_until(phase, lambda: PHASES[phase](run, name))
        disturb(run, name, number)
        status = wait_for_end(run, seconds=180)
    finish(run, status, must_survive=survives(name, number, phase))


@pytest.mark.parametrize("seed", range(1, 9))
def test_faults_at_random_times_lose_and_repeat_no_group(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with faulty(tmp_path, *SLOWLY, steps=30) as run:
        run.wait_until("first step", lambda: run.version() >= 1)
        for _ in range(4):
            time.sleep(draw.uniform(0.5, 4))
            name, number = (
                draw.choice(("replay", "verifier", "rollout-0", "rollout-1", "actor-0", "redis")),
                draw.choice((signal.SIGKILL, signal.SIGSTOP)),
            )
            pid = run.pid(name)
            if run.process.poll() is None and pid is not None and is_running(pid):
                disturb(run, name, number)
        status = wait_for_end(run, seconds=240)
    finish(run, status, must_survive=True)


@pytest.mark.parametrize("name", ["rollout-0", "actor-0", "redis", "replay", "learner"])
def test_a_process_that_is_paused_for_half_a_minute_loses_no_group(tmp_path: Path, name: str) -> None:
    with faulty(tmp_path, *SLOWLY, steps=60) as run:
        run.wait_until("second step", lambda: run.version() >= 2)
        pid = run.send(name, signal.SIGSTOP)
        stopped = time.monotonic()
        if name == "rollout-0":
            time.sleep(NOTICED_SECONDS)
            before = run.version()
            run.wait_until("three steps without the rollout", lambda: run.version() >= before + 3, seconds=15)
        time.sleep(max(0.0, stopped + LONG_STOP_SECONDS - time.monotonic()))
        os.kill(pid, signal.SIGCONT)
        status = wait_for_end(run, seconds=180)
    finish(run, status, must_survive=True)


def test_a_killed_launcher_leaves_no_process_and_the_run_resumes(tmp_path: Path) -> None:
    with faulty(tmp_path, *SLOWLY, steps=STEPS) as run:
        run.wait_until("checkpoint", lambda: run.version() >= 6)
        pids = [pid for name in (*RESTARTED, "learner", "redis") if (pid := run.pid(name)) is not None]
        assert len(pids) == 6
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + 20
        while any(is_running(pid) for pid in pids):
            assert time.monotonic() < deadline, "pods outlived the launcher"
            time.sleep(0.05)
    finish(run, run.process.returncode, must_survive=False)


def disturb(run: FaultyRun, name: str, number: signal.Signals) -> None:
    """Send the signal; a paused process is resumed after some seconds."""
    pid = run.send(name, number)
    if number is signal.SIGSTOP:
        time.sleep(STOPPED_SECONDS)
        os.kill(pid, signal.SIGCONT)


def survives(name: str, number: signal.Signals, phase: str) -> bool:
    """Return whether the run must reach its end without a resume.

    The learner is not restarted, and a pod that dies before it was ever ready ends the run with its error.
    """
    return number is signal.SIGSTOP or (name != "learner" and phase != "starting")


def finish(run: FaultyRun, status: int, *, must_survive: bool) -> None:
    """Resume a run that has ended early, and check the result."""
    if must_survive:
        assert status == 0, run.said()
    if status == 0 and run.rows("finished"):
        run.assert_exactly_once()
        return
    with faulty(run.directory, *SLOWLY, "--resume", steps=run.steps) as again:
        assert wait_for_end(again, seconds=180) == 0, again.said()
    again.assert_exactly_once()


def is_running(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
