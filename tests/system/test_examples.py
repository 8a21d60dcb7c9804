"""Each example with an environment of several turns runs: a few steps of it, with all its processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATED = ("rollout.engine=emulated", "rollout.emulated.median_seconds=0.1")
ENGINES = [
    pytest.param(EMULATED, id="emulated"),
    pytest.param((), id="vllm", marks=[pytest.mark.vllm, pytest.mark.long]),
]
STEPS = 2
SMALL = (
    *(f"learner.steps={STEPS}", "learner.groups_per_step=2", "rollout.group_size=2", "rollout.max_groups=4"),
    *("algorithm.preset=grpo", "evaluation.every_steps=0", "evaluation.prompts=2"),
    "evaluation.samples_per_prompt=1",
)
"""`grpo` has no filter: a policy that knows nothing gets equal rewards."""
EXAMPLES = {
    "guess_number": ({"solved", "turns"}, ".", ("warmup.steps=2",)),
    "wordle": ({"solved", "turns", "contradictions"}, ".", ("warmup.steps=2",)),
    "agent_program": ({"exact_match"}, ".", ("warmup.steps=2",)),
    "calculator_tool": (
        {"exact_match", "tool_calls", "failed_tool_calls"},
        "stages/02_tools",
        ("warmup.steps=0", "stages.0.steps=2"),
    ),
}
"""Rewards, the folder of the stage, and what makes the cold start short."""


def run_example(name: str, folder: Path, *settings: str) -> Path:
    """Run an example, and return the folder of the run, or of its stage."""
    _, stage, cold_start = EXAMPLES[name]
    changes = (*SMALL, *cold_start, f"runs_dir={folder / 'runs'}", f"warmup.cache_dir={folder / 'models'}")
    command = [sys.executable, "-m", "slipstream.cli", "run", f"examples/{name}.yaml", "--plain"]
    command += [part for change in (*changes, *settings) for part in ("--set", change)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs" / "latest" / stage


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == name]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_on_its_environment(name: str, engine: tuple[str, ...], tmp_path: Path) -> None:
    folder = run_example(name, tmp_path, *engine)
    steps = events(folder, "step")
    assert len(steps) == STEPS
    assert all(row["completions_withheld"] == 0 and row["completions"] == 4 for row in steps)
    assert all(set(row["rewards"]) == EXAMPLES[name][0] for row in steps)
    assert json.loads((folder / "summary.json").read_text())["ledger_residual"] == 0
