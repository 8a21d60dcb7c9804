"""A whole run, with the emulated engine, whose rewards differ only by step."""

from pathlib import Path

import pytest
from system.driver import running

REWARD = """
from slipstream.records import StepReward
from slipstream.verifier.reward import Verdict


def even(prompt, answer):
    text = answer.text
    if len(text) < 2:
        return Verdict(value=1.0)
    half = len(text) // 2
    first = float(sum(map(ord, text[:half])) % 2)
    steps = (StepReward(value=first, text_end=half), StepReward(value=0.0, text_end=len(text)))
    return Verdict(value=1.0, steps=steps)
"""
"""A reward with the same value for every answer, and different scores of the first step."""

SETTINGS = (
    "rollout.engine=emulated",
    "rollout.emulated.median_seconds=0.05",
    "algorithm={preset: grpo, kl: null, shaping: null}",
    "evaluation={reward: even, every_steps: 0}",
    "rewards=[{name: even, kind: custom, function: 'own_steps:even'}]",
)


@pytest.mark.long
@pytest.mark.parametrize("supervision", ["process", "outcome"])
def test_rewards_by_step_train_although_the_values_of_all_answers_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supervision: str
) -> None:
    (tmp_path / "own_steps.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with running(tmp_path, *SETTINGS, f"algorithm.supervision={supervision}", steps=4) as run:
        assert run.finish(seconds=300) == 0, run.said()
        rows = run.rows("step")
        assert [row["step"] for row in rows] == [1, 2, 3, 4]
        assert all((row["gradient_norm"] > 0) == (supervision == "process") for row in rows)
        summary = run.summary()
        assert (summary["ledger_residual"], summary["orphans"]) == (0, 0)
