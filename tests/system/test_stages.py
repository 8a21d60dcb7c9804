"""Runs of stages: with the emulated engine, whose answers are never right, and with vLLM."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from system.driver import running

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 600
SMALL = {
    "model": {"tiny": {"layers": 2, "width": 64, "heads": 2, "max_tokens": 64}},
    "evaluation": {"every_steps": 0, "prompts": 8, "samples_per_prompt": 2, "reward": "exact_match"},
}
SMALLER = {
    "supervised": {"steps": 150, "batch_size": 64, "learning_rate": 3e-3},
    "rl": {},
    "rejection_sampling": {"groups": 48},
    "preference": {"groups": 24, "rounds": 1},
}


def shrunk(example: str, directory: Path, *more: dict[str, Any], only: int | None = None) -> Path:
    """Return an example with its stages, much smaller numbers, and one-digit data, learned in seconds."""
    tree = yaml.safe_load((EXAMPLES / example).read_text())
    one_digit = json.loads(
        json.dumps(tree).replace('"digits": 2', '"digits": 1').replace('"length": 4', '"length": 2')
    )
    stages = [stage | SMALLER[stage["kind"]] for stage in one_digit["stages"]][:only]
    for stage in stages:
        if stage["kind"] == "rl":
            stage["set"] = stage.get("set", {}) | {"learner.steps": 2, "learner.groups_per_step": 8}
    rewards = [{"name": "exact_match"}]
    config = directory / "run.yaml"
    run = {"runs_dir": str(directory / "runs"), "rewards": rewards, "stages": [*stages, *more]}
    config.write_text(yaml.safe_dump(one_digit | SMALL | run))
    return config


def run(config: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Run a configuration to its end; return the run directory and the summaries of its stages."""
    command = (sys.executable, "-m", "slipstream.cli", "run", str(config), "--plain")
    cache = f"warmup={{steps: 0, cache_dir: {config.parent / 'cache'}}}"
    done = subprocess.run(
        [*command, "--set", cache], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    latest = (config.parent / "runs" / "latest").resolve()
    return latest, json.loads((latest / "summary.json").read_text())["stages"]


def assert_every_stage_changed_the_model(run_dir: Path) -> None:
    models = [
        load_file(path / "model" / "model.safetensors") for path in sorted((run_dir / "stages").iterdir())
    ]
    for before, after in pairwise(models):
        assert before.keys() == after.keys()
        assert any(not before[name].equal(after[name]) for name in before)
    last = load_file(run_dir / "model" / "model.safetensors")
    assert all(last[name].equal(models[-1][name]) for name in last)


# The emulated engine samples at random and never ends an answer: every demonstration is better.
SPIN = {"name": "spin", "kind": "preference", "ranked_by": "demonstrations", "groups": 8}
EMULATED = ("rollout.engine=emulated", "rollout.emulated.median_seconds=0.05", "rollout.max_new_tokens=8")


def stages_of(*stages: dict[str, Any]) -> str:
    return f"stages={json.dumps(stages)}"


def test_a_round_trains_only_on_its_groups_and_the_ledger_is_balanced(tmp_path: Path) -> None:
    with running(
        tmp_path, *EMULATED, stages_of(SPIN | {"rounds": 2}, SPIN | {"name": "more"}), steps=1
    ) as run:
        assert run.finish() == 0, run.said()
    assert_every_stage_changed_the_model(run.run_dir)
    for folder, rounds in (("01_spin", 2), ("02_more", 1)):
        stage = run.run_dir / "stages" / folder
        summary = json.loads((stage / "summary.json").read_text())
        assert (summary["ledger_residual"], summary["orphans"], summary["steps"]) == (0, 0, rounds)
        assert summary["ledger"]["trained"] == 8 * rounds
        assert len(list((stage / "rounds").glob("*.jsonl"))) == rounds
        assert all(len(_lines(stage, number)) == 8 * 4 for number in range(1, rounds + 1))


@pytest.mark.long
def test_a_killed_stage_resumes_after_its_last_round_and_loses_no_group(tmp_path: Path) -> None:
    slow = (*EMULATED, "rollout.emulated.median_seconds=0.6", "rollout.max_groups=2")
    with running(tmp_path, *slow, stages_of(SPIN | {"rounds": 3}), steps=1) as run:
        metrics = run.run_dir / "stages" / "01_spin" / "metrics.jsonl"
        run.wait_until(
            "the first round", lambda: metrics.exists() and '"event": "step"' in metrics.read_text()
        )
        time.sleep(1.5)  # in the middle of the second round
        run.process.kill()
        run.process.wait()
    with running(tmp_path, *slow, stages_of(SPIN | {"rounds": 3}), "--resume", steps=1) as run:
        assert run.finish() == 0, run.said()
    stage = run.run_dir / "stages" / "01_spin"
    assert json.loads((stage / "summary.json").read_text())["ledger_residual"] == 0
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [row["step"] for row in rows if row["event"] == "step"]
    assert steps == [1, 2, 3]
    assert [len(_lines(stage, number)) for number in (1, 2, 3)] == [8 * 4] * 3


def _lines(stage: Path, number: int) -> list[str]:
    return (stage / "rounds" / f"round_{number:04d}.jsonl").read_text().splitlines()


@pytest.mark.vllm
@pytest.mark.long
def test_the_r1_recipe_completes_its_four_stages(tmp_path: Path) -> None:
    run_dir, stages = run(shrunk("r1_recipe.yaml", tmp_path))
    assert [stage["kind"] for stage in stages] == ["supervised", "rl", "rejection_sampling", "rl"]
    assert_every_stage_changed_the_model(run_dir)
    selected = stages[2]["counts"]
    assert selected["completions"] == 48 * 8
    kept = (run_dir / "stages" / "03_rejection" / "rounds" / "round_0001.jsonl").read_text().splitlines()
    assert len(kept) == selected["kept"] > 0
    assert all(json.loads(row)["rewards"]["exact_match"] == 1.0 for row in kept)
    for folder in ("02_reasoning", "03_rejection", "04_all_tasks"):
        summary = json.loads((run_dir / "stages" / folder / "summary.json").read_text())
        assert (summary["ledger_residual"], summary["orphans"]) == (0, 0)
        assert summary["held_out_accuracy_before"] is not None
        assert summary["held_out_accuracy_after"] is not None


@pytest.mark.vllm
@pytest.mark.long
def test_preference_rounds_and_a_distillation_are_completed(tmp_path: Path) -> None:
    # The teacher is the model of the cold start of this run.
    teacher = tmp_path / "teacher"
    config = shrunk("self_play.yaml", tmp_path, only=1)
    first, _ = run(config)
    teacher.symlink_to(first / "stages" / "01_cold_start" / "model")
    distil = {"name": "distil", "kind": "distillation", "teacher": str(teacher), "groups": 24}
    tree = yaml.safe_load(shrunk("self_play.yaml", tmp_path, distil).read_text())
    tree["stages"] = [stage for stage in tree["stages"] if stage["kind"] != "supervised"]
    tree["model"] = {"path": str(teacher)}
    config.write_text(yaml.safe_dump(tree))
    command = (sys.executable, "-m", "slipstream.cli", "run", str(config), "--plain")
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    latest = (tmp_path / "runs" / "latest").resolve()
    stages = json.loads((latest / "summary.json").read_text())["stages"]
    assert [stage["name"] for stage in stages] == ["spin", "verified", "self_rewarding", "distil"]
    assert_every_stage_changed_the_model(latest)
    assert stages[0]["counts"]["pairs"] > 0
    judged = stages[2]["counts"]
    assert judged["pairs"] + judged["ties"] + judged["contradicted"] + judged["identical"] == 24
    for stage in stages:
        assert None not in (stage["accuracy_before"], stage["accuracy_after"])
