"""`slipstream run` with stages and fake pods: the order of stages, their files, and how they resume."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from slipstream.config import load_config

LAUNCH = Path(__file__).with_name("launch.py")
SERVICES = Path(__file__).parents[2] / "services"
STAGES = [
    {"name": "start", "kind": "supervised", "steps": 100},
    {"name": "reason", "kind": "rl", "set": {"learner.steps": 3}},
    {"name": "select", "kind": "rejection_sampling", "rounds": 2, "groups": 8},
    {"name": "prefer", "kind": "preference", "groups": 8},
]


class Staged:
    """Starts launch.py on a run with stages in its own directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(
        self, stages: list[dict[str, Any]], *arguments: str, **environment: str
    ) -> "subprocess.Popen[str]":
        config = self.folder / "job.yaml"
        cache = {"steps": 0, "cache_dir": str(self.folder / "cache")}
        tree = {"name": "job", "runs_dir": str(self.folder / "runs"), "warmup": cache, "stages": stages}
        config.write_text(yaml.safe_dump(tree))
        self.process = subprocess.Popen(
            [sys.executable, str(LAUNCH), str(config), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SERVICES), "FAKE_MARKS": str(self.folder), **environment},
        )
        return self.process

    def run(self, stages: list[dict[str, Any]], *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(stages, *arguments, **environment)
        out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    @property
    def run_dir(self) -> Path:
        return (self.folder / "runs" / "latest").resolve()

    def stage(self, folder: str) -> Path:
        return self.run_dir / "stages" / folder

    def history(self) -> list[str]:
        """Return the stages from which the final model was trained."""
        return (self.run_dir / "model" / "history").read_text().split()[1:]  # the first one is the cache


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    made = Staged(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Staged, str]:
    """Return a finished run with every kind of stage that needs no second model, and its output."""
    staged = Staged(tmp_path_factory.mktemp("staged"))
    status, out, err = staged.run(STAGES)
    assert (status, err) == (0, "")
    return staged, out


def test_each_stage_starts_from_the_model_of_the_one_before(finished: tuple[Staged, str]) -> None:
    staged, _ = finished
    assert staged.history() == ["01_start", "02_reason", "03_select", "04_prefer"]
    prefer = load_config(staged.stage("04_prefer") / "config.yaml")
    assert prefer.model.path == staged.stage("03_select") / "model"
    assert prefer.run_dir == staged.stage("04_prefer")
    assert prefer.model.tiny is None


def test_each_stage_writes_its_rows_and_its_summary_and_the_run_lists_its_stages(
    finished: tuple[Staged, str],
) -> None:
    staged, _ = finished
    summaries = [json.loads((path / "stage.json").read_text()) for path in sorted(staged.stage("").iterdir())]
    assert json.loads((staged.run_dir / "summary.json").read_text()) == {"stages": summaries}
    assert [(s["name"], s["accuracy_before"], s["accuracy_after"], s["counts"]) for s in summaries] == [
        ("start", None, 0.34, {"steps": 100}),
        ("reason", 0.25, 0.75, {"steps": 3}),
        ("select", 0.5, 0.875, {"rounds": 2, "completions": 128, "kept": 80}),
        ("prefer", 0.5, 0.875, {"rounds": 1, "completions": 64, "kept": 40}),
    ]
    for path in sorted(staged.stage("").iterdir()):
        assert (path / "metrics.jsonl").stat().st_size > 0


def test_the_output_ends_with_a_table_of_the_stages(finished: tuple[Staged, str]) -> None:
    _, out = finished
    lines = out.splitlines()
    assert "stage 3/4 select: held-out accuracy 0.500 → 0.875; 2 rounds, 128 completions, 80 kept" in lines
    assert lines[-6:-1] == [
        "stage   kind                before  after",
        "start   supervised          –       0.340  100 steps",
        "reason  rl                  0.250   0.750  3 steps",
        "select  rejection_sampling  0.500   0.875  2 rounds, 128 completions, 80 kept",
        "prefer  preference          0.500   0.875  1 rounds, 64 completions, 40 kept",
    ]
    assert "round 2/2: sampled" in lines


def test_a_run_whose_stages_are_all_done_is_not_resumed_until_one_is_added(
    finished: tuple[Staged, str],
) -> None:
    staged, _ = finished
    status, _, err = staged.run(STAGES, "--resume")
    assert status == 2
    assert "has finished its 4 stages; add one to go on" in err
    more = [*STAGES, {"name": "more", "kind": "rl", "set": {"learner.steps": 1}}]
    status, out, err = staged.run(more, "--resume")
    assert (status, err) == (0, "")
    assert "stage 4/5 prefer: held-out" in out
    assert "(preference) starts" not in out
    assert staged.history()[-1] == "05_more"


def test_an_interrupted_run_resumes_inside_its_unfinished_stage(staged: Staged) -> None:
    stages = [STAGES[0], {"name": "select", "kind": "rejection_sampling", "rounds": 12}, STAGES[1]]
    process = staged.start(stages, FAKE_STEP_SECONDS="0.4")
    rows = staged.folder / "runs" / "latest" / "stages" / "02_select" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (rows.exists() and rows.read_text().count('"step"') >= 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "interrupted at stage 2/3 select; to go on: the same command with --resume" in out
    assert not (staged.stage("02_select") / "stage.json").exists()
    assert not staged.stage("03_reason").exists()

    changed = [{**STAGES[0], "steps": 7}, *stages[1:]]
    status, _, err = staged.run(changed, "--resume")
    assert status == 2
    assert "was started with another stages[0] (start); put it back" in err

    status, out, err = staged.run(stages, "--resume")
    assert (status, err) == (0, "")
    assert "start: making" not in out
    assert staged.history() == ["01_start", "02_select", "03_reason"]
    assert '"resumed"' in rows.read_text()


def test_a_stage_that_keeps_no_completion_fails_the_run_with_the_reason(staged: Staged) -> None:
    status, _, err = staged.run(STAGES[2:], FAKE="learner:keep_nothing")
    assert status == 1
    assert "| NothingKept: kept 0 of 64 answers" in err
    assert not (staged.run_dir / "model").exists()


def test_the_error_of_a_supervised_stage_has_the_name_of_the_stage(staged: Staged) -> None:
    status, _, err = staged.run([STAGES[1]])  # writes the initial model to the cache
    assert (status, err) == (0, "")
    status, _, err = staged.run([STAGES[0]], FAKE="warmup:fail")
    assert status == 1
    assert "start exited with status 1" in err


def test_a_distillation_stage_samples_from_the_teacher_and_trains_the_model_of_the_stage_before(
    staged: Staged,
) -> None:
    teacher = staged.folder / "teacher"
    stages = [STAGES[0], {"name": "distil", "kind": "distillation", "teacher": str(teacher)}]
    status, _, err = staged.run(stages, FAKE_STEP_SECONDS="2")
    assert (status, err) == (0, "")
    log = (staged.stage("02_distil") / "logs" / "rollout-0.log").read_text()
    assert f'model.path="{teacher}"' in log
    assert "model.path" not in (staged.stage("02_distil") / "logs" / "learner.log").read_text()
    assert (
        load_config(staged.stage("02_distil") / "config.yaml").model.path
        == staged.stage("01_start") / "model"
    )
