"""A run of a stage that labels steps, with the emulated engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from system.driver import running

REWARD = """
def even(prompt, answer):
    return float(sum(map(ord, answer.text)) % 2 == 0)
"""
GROUPS = 40
STAGE = {"name": "labels", "kind": "step_labels", "groups": GROUPS, "samples": 4, "separator": "5"}
SETTINGS = (
    "rollout.engine=emulated",
    "rollout.emulated.median_seconds=0.2",
    "rollout.emulated.sigma=0.1",
    "rollout.max_groups=4",
    "rollout.max_new_tokens=12",
    "evaluation={reward: even, every_steps: 0}",
    "rewards=[{name: even, kind: custom, function: 'own_labels:even'}]",
    f"stages={json.dumps([STAGE])}",
)


def rows_of(stage: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (stage / "rounds" / "round_0001.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_after_a_kill_the_labels_are_those_of_the_seed_and_no_finished_prompt_is_sampled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_labels.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    undisturbed, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    with running(undisturbed, *SETTINGS, steps=1) as run:
        assert run.finish(seconds=400) == 0, run.said()
        assert "sampled 40 of 40 prompts" in run.said()
        expected = rows_of(run.run_dir / "stages" / "01_labels")
        first = run.run_dir / "stages" / "01_labels"
    with running(killed, *SETTINGS, steps=1) as run:
        metrics = run.run_dir / "stages" / "01_labels" / "metrics.jsonl"
        run.wait_until(
            "most groups", lambda: metrics.exists() and "sampled 32" in metrics.read_text(), seconds=400
        )
        run.process.kill()
        run.process.wait()
        assert '"event": "step"' not in metrics.read_text()
    with running(killed, *SETTINGS, "--resume", steps=1) as run:
        assert run.finish(seconds=400) == 0, run.said()
        stage = run.run_dir / "stages" / "01_labels"
    assert rows_of(stage) == expected
    summary = json.loads((stage / "summary.json").read_text())
    assert (summary["ledger_residual"], summary["orphans"]) == (0, 0)
    assert summary["ledger"]["inserted"] == GROUPS
    _consistent(expected)
    start = json.loads((first / "stage.json").read_text())["started_from"]
    before, after = (load_file(Path(at) / "model.safetensors") for at in (start, first / "model"))
    assert all(before[name].equal(after[name]) for name in before)


def _consistent(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == GROUPS * 4
    several = [row for row in rows if len(row["labels"]) > 1]
    assert several
    for row in rows:
        assert row["labels"] == [share > 0 for share in row["soft_labels"]]
        assert row["soft_labels"][-1] == float(row["right"])
        assert all("5" not in step and step for step in row["completions"])
    assert {share for row in several for share in row["soft_labels"][:-1]} - {0.0, 1.0}
