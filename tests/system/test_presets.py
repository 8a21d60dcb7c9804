"""Every preset trains: five steps of the quickstart with the real engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slipstream.algorithms import PRESETS

ROOT = Path(__file__).resolve().parents[2]
REFUSED = {"rspo": "rspo weighs by the shift of a router, and the tiny model is dense"}
MIXTURE = ("model.tiny.experts=8", "warmup.steps=150", "learner.minibatches=2")
"""The setting that makes the quickstart's model a mixture of experts, for presets that need one."""
STEPS = 5
SMALL = ("evaluation={every_steps: 0, prompts: 8, samples_per_prompt: 2}", f"learner.steps={STEPS}")

pytestmark = [pytest.mark.presets, pytest.mark.vllm]


def quickstart(preset: str, runs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the quickstart with a preset; the first run makes the cold start, unless the cache has it."""
    settings = (f"algorithm.preset={preset}", f"runs_dir={runs}", *SMALL, *more)
    command = [sys.executable, "-m", "slipstream.cli", "run", "examples/addition.yaml", "--plain"]
    command += [part for setting in settings for part in ("--set", setting)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_preset_trains_on_the_quickstart_s_model(preset: str, tmp_path: Path) -> None:
    done = quickstart(preset, tmp_path, *(MIXTURE if preset in REFUSED else ()))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "latest" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["event"] == "step"]
    assert len(steps) == STEPS
    assert all(row["bad_steps"] == 0 and row["loss"] is not None for row in steps)
    assert any(row["gradient_norm"] > 0 for row in steps)
    assert all(set(row["by_staleness"]) <= {"0", "1", "2", "3-4", "5-8"} for row in steps)
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    assert (summary["ledger_residual"], summary["orphans"]) == (0, 0)


@pytest.mark.parametrize("preset", sorted(REFUSED))
def test_a_preset_that_does_not_fit_the_model_is_refused_with_the_reason(preset: str, tmp_path: Path) -> None:
    done = quickstart(preset, tmp_path)
    assert done.returncode == 2
    assert REFUSED[preset] in done.stderr
    assert not list(tmp_path.iterdir())
