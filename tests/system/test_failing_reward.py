"""The console shows the first failure of a reward on a completion of the policy."""

from pathlib import Path

import pytest
from system.driver import running

REWARD = """
def length(prompt, answer):
    return 1 / (len(answer.text) - 24) if answer.text and answer.text != prompt.answer else 0.0
"""
"""A reward that scores a demonstration and an empty answer, as validation tries, and fails at 24 digits."""


def test_the_console_shows_the_first_failure_of_a_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rewards.py").write_text(REWARD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = (
        "rollout.engine=emulated",
        "rollout.emulated.median_seconds=0.1",
        "evaluation.reward=length",
        "rewards=[{name: length, kind: custom, function: 'own_rewards:length'}]",
    )
    with running(tmp_path, *settings, steps=5) as run:
        run.wait_until("failure on the console", lambda: "ZeroDivisionError" in run.said())
        assert run.version() == 0
        assert "reward `length` failed on prompt addition/" in run.said()
