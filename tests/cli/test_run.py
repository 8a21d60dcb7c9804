"""`slipstream run` as a process, with fake pods as processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slipstream.cli.errors import UsageError
from slipstream.cli.run import run_command
from slipstream.config import load_config, parse_config

LAUNCH = Path(__file__).with_name("launch.py")
SERVICES = Path(__file__).parents[2] / "services"


class Launcher:
    """Starts launch.py in its own directory, and reads the files that it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: subprocess.Popen[str] | None = None
        self.config = folder / "job.yaml"
        self.config.write_text(
            f"name: job\nruns_dir: {folder / 'runs'}\n"
            f"warmup: {{steps: 100, cache_dir: {folder / 'cache'}}}\nlearner: {{steps: 5}}\n"
        )

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        self.started = subprocess.Popen(
            [sys.executable, str(LAUNCH), str(self.config), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(SERVICES),
                "FAKE_MARKS": str(self.folder),
                "SLIPSTREAM_TEST_MARK": str(self.folder),
                **environment,
            },
        )
        return self.started

    def end(self) -> None:
        """Kill all processes, also after a failed test."""
        if self.started is not None and self.started.poll() is None:
            self.started.kill()
            self.started.communicate(timeout=20)

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=40)
        return process.returncode, out, err

    @property
    def latest(self) -> Path:
        return self.folder / "runs" / "latest"

    @property
    def summary(self) -> dict[str, object]:
        return json.loads((self.latest / "summary.json").read_text())

    def steps_done(self) -> int:
        file = self.latest / "metrics.jsonl"
        return file.read_text().count('"event": "step"') if file.exists() else 0

    def living(self) -> list[int]:
        """Return the processes that inherited the environment of this launcher."""
        mark = f"SLIPSTREAM_TEST_MARK={self.folder}".encode()
        return [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/environ") if mark in _read(p)]


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Launcher, str]:
    """Return the launcher of a successful run with two rollouts, and the output of the run."""
    launcher = Launcher(tmp_path_factory.mktemp("finished"))
    step_seconds = "1"  # the rollouts start before the learner has finished
    settings = ("rollout.workers=2", "learner.groups_per_step=7")
    status, out, err = launcher.run(*settings, FAKE_STEP_SECONDS=step_seconds)
    assert (status, err) == (0, "")
    return launcher, out


def test_a_run_writes_all_files_of_its_directory(finished: tuple[Launcher, str]) -> None:
    launcher, out = finished
    run = launcher.latest.resolve()
    assert re.fullmatch(r"job-\d{8}-\d{6}", run.name)
    assert sorted(p.name for p in (run / "plots").iterdir()) == [
        "clip_fractions.png",
        "reward.png",
        "staleness.png",
        "throughput.png",
    ]
    assert all(p.stat().st_size > 10_000 for p in (run / "plots").iterdir())
    for pod in ("replay", "verifier", "learner", "rollout-0", "rollout-1", "actor-0"):
        assert f"{pod} starts" in (run / "logs" / f"{pod}.log").read_text()
    assert "summary" in out
    assert "plots" in out
    assert launcher.living() == []


def test_the_summary_agrees_with_the_rows_and_the_ledger(finished: tuple[Launcher, str]) -> None:
    summary = finished[0].summary
    ledger = summary.pop("ledger")
    assert summary == {
        "held_out_accuracy_before": 0.25,
        "held_out_accuracy_after": 0.75,
        "held_out_accuracy_last": 0.75,
        "held_out_step_last": 5,
        "steps": 5,
        "loop_seconds": 10.0,
        "completions_trained": 80,
        "completions_with_several_versions": 20,
        "completions_stale": 60,
        "staleness_mean": 1.5,
        "staleness_max": 3,
        "learner_idle_fraction": 0.1,
        "ledger_residual": 0,
        "orphans": 0,
        "interrupted": False,
    }
    assert ledger["trained"] == 6
    assert ledger["filtered"] == {"same": 1}


def test_on_a_pipe_the_output_has_the_addresses_and_then_one_line_per_step(
    finished: tuple[Launcher, str],
) -> None:
    _, out = finished
    lines = [line for line in out.splitlines() if line.startswith("step ")]
    assert len(lines) == 5
    assert lines[2] == (
        "step 3/5  reward 0.280  held-out 0.250  filtered –  truncated 25%  staleness 1.50 max 3  "
        "clip low/high 0.0010/0.0200  tokens/s 5,000  idle 10%  workers 1  version 3  time left 2s"
    )
    assert re.search(r"replay is ready at 127\.0\.0\.1:\d+", out)
    assert "cold start: step 100/100  loss 1.500" in out
    assert out.index("waiting for") < out.index("step 1/5")


def test_the_first_failure_of_a_reward_is_on_the_console(launcher: Launcher) -> None:
    status, out, _ = launcher.run(FAKE="verifier:reward_fails", FAKE_STEP_SECONDS="0.3")
    assert status == 0
    lines = [line for line in out.splitlines() if line.startswith("reward `mine` failed")]
    assert lines == [
        "reward `mine` failed on prompt file/3: ValueError: no; see "
        f"{launcher.latest.resolve() / 'logs' / 'verifier.log'}"
    ]
    assert out.index(lines[0]) < out.index("step 5/5")


def test_a_run_whose_groups_are_nearly_all_filtered_prints_a_warning_with_a_sample(
    launcher: Launcher,
) -> None:
    status, out, _ = launcher.run(
        "learner.groups_per_step=10", FAKE="replay:filters rollout-0:unvaried", FAKE_STEP_SECONDS="1"
    )
    assert status == 0
    warnings = [line for line in out.splitlines() if line.startswith("warning:")]
    assert len(warnings) == 1
    counts = re.search(r"90% of the last (\d+) groups were filtered \((\d+) because all", warnings[0])
    assert counts is not None, warnings
    inserted, filtered = int(counts[1]), int(counts[2])
    # The fake inserts 100 groups at each call, and on a slow machine the launcher repeats a call.
    assert inserted % 100 == 0
    assert 0 < filtered == inserted * 9 // 10
    assert "all 8 answers to prompt file/3 (ground truth '42') were rewarded alike: exact_match 0" in out
    assert "filtered 90%" in out


def test_the_pods_read_a_resolved_configuration(finished: tuple[Launcher, str]) -> None:
    launcher, _ = finished
    config = load_config(launcher.latest / "config.yaml")
    assert config.learner.groups_per_step == 7
    assert config.model.tiny is None
    assert config.warmup is None
    assert config.model.path is not None
    assert (config.model.path / "config.json").exists()
    assert config.run_dir == launcher.latest.resolve()


def test_a_cold_start_is_made_once(finished: tuple[Launcher, str]) -> None:
    launcher, _ = finished

    status, out, _ = launcher.run()

    assert status == 0
    assert "(cached)" in out
    assert "cold start: step" not in out


def test_a_cold_start_that_fails_shows_its_log(launcher: Launcher) -> None:
    status, _, err = launcher.run(FAKE="warmup:fail")

    assert status == 1
    assert "cold start exited with status 1" in err
    assert "| no demonstrations" in err


def test_a_rollout_that_dies_while_starting_ends_the_run_with_its_last_lines(launcher: Launcher) -> None:
    status, _, err = launcher.run(FAKE="rollout-0:die_at_start", FAKE_STEP_SECONDS="0.5")

    assert status == 1
    assert "rollout-0 exited with status 3 before it was ready" in err
    assert "| RuntimeError: the engine has no memory" in err
    assert launcher.living() == []


def test_an_engine_that_never_starts_ends_the_run(launcher: Launcher) -> None:
    status, _, err = launcher.run(
        "rollout.start_timeout_seconds=1.5", FAKE="rollout-0:never_ready", FAKE_STEP_SECONDS="0.5"
    )

    assert status == 1
    assert "rollout-0 was not ready after 1.5 s" in err


def test_pods_that_die_later_are_restarted_at_their_addresses(launcher: Launcher) -> None:
    fates = "rollout-0:dies_once replay:dies_once verifier:dies_once"
    status, out, _ = launcher.run("learner.steps=40", FAKE=fates, FAKE_STEP_SECONDS="0.1")

    assert status == 0
    assert "rollout-0 was killed by SIGKILL; starting it again" in out
    assert out.count("rollout-0 is ready") == 2
    first, second = re.findall(r"replay is ready at (\S+)", out)
    assert first == second


def test_an_actor_that_ended_without_an_error_is_restarted_and_a_rollout_is_not(launcher: Launcher) -> None:
    fates = "actor-0:ends_once rollout-0:ends_once"
    status, out, _ = launcher.run("learner.steps=40", FAKE=fates, FAKE_STEP_SECONDS="0.1")

    assert status == 0
    assert "actor-0 exited with status 0; starting it again" in out
    assert "rollout-0 exited" not in out


def test_a_pod_that_was_healthy_for_long_has_all_its_restarts_again(launcher: Launcher) -> None:
    status, out, _ = launcher.run(
        "learner.steps=150", FAKE="rollout-0:dies", FAKE_STEP_SECONDS="0.1", FAKE_HEALTHY_SECONDS="0"
    )
    assert status == 0
    assert out.count("starting it again in 0.2 s (1 of 3)") > 3
    assert "(2 of 3)" not in out


def test_a_rollout_that_keeps_dying_ends_a_run_that_has_no_other(launcher: Launcher) -> None:
    status, _, err = launcher.run("learner.steps=900", FAKE="rollout-0:dies", FAKE_STEP_SECONDS="0.1")

    assert status == 1
    assert "the run failed: rollout-0 was killed by SIGKILL" in err


@pytest.mark.parametrize("kind", ["rollout", "actor"])
def test_a_run_continues_without_a_rollout_or_actor_that_keeps_dying(launcher: Launcher, kind: str) -> None:
    status, out, _ = launcher.run(
        f"{kind}.workers=2", "learner.steps=40", FAKE=f"{kind}-0:dies", FAKE_STEP_SECONDS="0.1"
    )

    assert status == 0
    assert "the run goes on without it" in out


def test_a_learner_that_dies_fails_the_run_and_the_error_says_how_to_resume(launcher: Launcher) -> None:
    status, _, err = launcher.run(FAKE="learner:die_at_3")

    assert status == 1
    assert "learner exited with status 1" in err
    assert "| ValueError: loss is not finite" in err
    assert "--resume" in err
    assert launcher.summary["steps"] == 3
    assert launcher.living() == []


def test_a_run_killed_in_its_last_evaluation_is_unfinished_and_can_be_resumed(launcher: Launcher) -> None:
    status, _, _ = launcher.run(FAKE="learner:die_while_evaluating")
    assert status == 1
    assert launcher.summary["steps"] == 5
    assert launcher.summary["interrupted"] is True
    assert launcher.summary["held_out_accuracy_after"] is None

    status, _, err = launcher.run("--resume")
    assert (status, err) == (0, "")
    assert launcher.summary["steps"] == 5
    assert launcher.summary["interrupted"] is False
    assert launcher.summary["held_out_accuracy_after"] == 0.75


def test_one_interrupt_stops_the_pods_in_order_and_the_run_can_be_resumed(launcher: Launcher) -> None:
    process = launcher.start("learner.steps=60", FAKE_STEP_SECONDS="0.1")
    _until(lambda: launcher.steps_done() >= 3)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)

    assert process.returncode == 0
    assert time.monotonic() - sent < 15
    assert "--resume" in out
    assert launcher.summary["interrupted"] is True
    assert launcher.living() == []

    before = launcher.latest.resolve()
    status, out, err = launcher.run("--resume", "learner.steps=60")
    assert (status, err) == (0, "")
    assert launcher.latest.resolve() == before
    assert (launcher.summary["steps"], launcher.summary["completions_trained"]) == (60, 60 * 16)
    assert launcher.summary["interrupted"] is False
    assert (before / "logs" / "learner.log").read_text().count("learner starts") == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_stop_the_pods_in_order_also_before_the_first_step(
    launcher: Launcher, number: signal.Signals
) -> None:
    process = launcher.start(FAKE_STEP_SECONDS="0.5", FAKE="rollout-0:never_ready")
    _until(lambda: (launcher.latest / "pods" / "learner.json").exists())
    process.send_signal(number)
    process.communicate(timeout=20)

    assert process.returncode == 0
    assert launcher.summary["interrupted"] is True
    assert launcher.living() == []


def test_a_pod_that_ignores_sigterm_is_killed_within_the_budget(launcher: Launcher) -> None:
    process = launcher.start(FAKE="learner:stubborn rollout-0:stubborn", FAKE_STEP_SECONDS="8")
    _until(lambda: (launcher.latest / "pods" / "rollout-0.json").exists())
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert process.returncode == 1
    assert "the learner was killed before it could write a checkpoint; there is none" in err
    assert time.monotonic() - sent < 15
    assert "rollout-0 did not stop within 3 s and was killed" in out
    assert "learner made no progress for 3 s and was killed" in out
    assert launcher.living() == []


def test_a_second_interrupt_kills_at_once(launcher: Launcher) -> None:
    process = launcher.start(FAKE="rollout-0:stubborn", FAKE_STEP_SECONDS="0.2")
    _until(lambda: launcher.steps_done() >= 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.6)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)

    assert process.returncode == 130
    assert time.monotonic() - sent < 4
    assert launcher.living() == []


def test_an_interrupt_waits_while_the_checkpoint_grows_and_shows_its_progress(launcher: Launcher) -> None:
    """The checkpoint takes longer than the limit for a pod without progress, which is 3 s in this test."""
    process = launcher.start("learner.steps=60", FAKE="learner:slow_checkpoint", FAKE_STEP_SECONDS="0.1")
    _until(lambda: launcher.steps_done() >= 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert (process.returncode, err) == (0, "")
    shown = [
        int(megabytes) for megabytes in re.findall(r"the learner is writing (\d+) of 10 MB \(step_", out)
    ]
    assert len(shown) >= 2
    assert shown == sorted(set(shown))
    (written,) = (launcher.latest / "checkpoints").glob("step_*/tensors/*")
    assert written.stat().st_size == 10_000_000
    assert (launcher.latest / "plots" / "reward.png").exists()
    assert launcher.living() == []


def test_the_learner_is_killed_when_its_checkpoint_stops_growing(launcher: Launcher) -> None:
    process = launcher.start("learner.steps=60", FAKE="learner:stuck_checkpoint", FAKE_STEP_SECONDS="0.1")
    _until(lambda: launcher.steps_done() >= 2)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 1
    assert time.monotonic() - sent < 15
    assert re.search(r"the learner is writing \d of 10 MB", out)
    assert "learner made no progress for 3 s and was killed" in out
    assert "the learner was killed before it could write a checkpoint; there is none" in err
    assert launcher.living() == []


def test_a_second_interrupt_kills_a_learner_that_writes_its_checkpoint(launcher: Launcher) -> None:
    process = launcher.start("learner.steps=60", FAKE="learner:slow_checkpoint", FAKE_STEP_SECONDS="0.1")
    _until(lambda: launcher.steps_done() >= 2)
    process.send_signal(signal.SIGINT)
    _until(lambda: any((launcher.latest / "checkpoints").glob(".partial-*")))
    time.sleep(0.4)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)

    assert process.returncode == 130
    assert time.monotonic() - sent < 4
    assert launcher.living() == []


def test_a_killed_launcher_leaves_no_process(launcher: Launcher) -> None:
    process = launcher.start("learner.steps=600", FAKE="rollout-0:stubborn", FAKE_STEP_SECONDS="0.1")
    _until(lambda: launcher.steps_done() >= 2)
    assert len(launcher.living()) >= 6
    process.kill()
    process.communicate(timeout=20)

    _until(lambda: launcher.living() == [])


def test_a_daemon_without_the_marks_of_the_run_is_counted_and_killed(launcher: Launcher) -> None:
    status, _, _ = launcher.run(FAKE="replay:leak")

    assert status == 0
    assert launcher.summary["orphans"] == 1
    assert launcher.living() == []


def test_without_rollouts_the_addresses_for_them_are_printed(launcher: Launcher) -> None:
    status, out, _ = launcher.run("rollout.workers=0", FAKE_STEP_SECONDS="0.2")

    assert status == 0
    assert re.search(r"SLIPSTREAM_LEARNER_ADDRESS=127\.0\.0\.1:9 .*\n.*python -m slipstream\.rollout", out)
    assert "no rollouts are started here" in out


def test_a_run_that_was_not_paused_says_nothing_of_it(finished: tuple[Launcher, str]) -> None:
    assert "paused" not in finished[1]


def test_a_run_that_was_stopped_while_it_was_paused_goes_on_and_says_so(launcher: Launcher) -> None:
    status, out, err = launcher.run(FAKE="replay:paused")
    assert status == 0, err
    assert "the run was paused, and goes on" in out
    assert err == ""


def test_a_pause_that_is_newer_than_the_start_of_the_run_stays(launcher: Launcher) -> None:
    status, out, err = launcher.run(FAKE="replay:paused_since")
    assert status == 0, err
    assert "goes on" not in out


def test_resume_without_a_run_is_an_error(launcher: Launcher) -> None:
    status, _, err = launcher.run("--resume")

    assert status == 2
    assert "there is no run in" in err


def test_resume_of_a_finished_or_another_run_is_refused(finished: tuple[Launcher, str]) -> None:
    launcher, _ = finished

    assert "has finished its 5 steps" in launcher.run("--resume")[2]
    assert "is a run of `job`" in launcher.run("--resume", "name=other")[2]
    assert "another seed" in launcher.run("--resume", "learner.steps=9", "seed=4")[2]
    hotter = launcher.run("--resume", "learner.steps=9", "rollout.temperature=0.5")[2]
    assert "another rollout.temperature" in hotter
    rewards = "rewards=[{name: exact_match}, {name: format, pattern: x}]"
    assert "another set of reward names" in launcher.run("--resume", "learner.steps=9", rewards)[2]


def test_a_closed_output_pipe_does_not_stop_the_run(launcher: Launcher) -> None:
    process = launcher.start(FAKE_STEP_SECONDS="0.1")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=30)

    assert process.returncode == 0
    assert launcher.summary["steps"] == 5


def _until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_local_run_with_one_certificate_for_all_pods_is_refused() -> None:
    tls = {"certificate": "c", "key": "k", "authority": "a", "trust_domain": "d"}
    with pytest.raises(UsageError, match=r"rpc\.tls: one certificate cannot be that of every pod"):
        run_command(parse_config({"rpc": {"tls": tls}}))
