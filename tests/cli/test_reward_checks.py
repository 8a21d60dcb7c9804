"""A user's own rewards, looked at when the run is validated."""

import sys
from pathlib import Path

import pytest
from slipstream.cli.checks.rewards import check_rewards
from slipstream.config import parse_config
from slipstream.config.checks import Problem

MODULE = """
import math
def good(prompt, answer, *, k=1): return k
def whole(prompt, answers): return [0] * len(answers)
def narrow(prompt): return 0
async def waits(prompt, answer): return 0
number = 3
class Held:
    @staticmethod
    def inside(prompt, answer): return 0
"""


def found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str = MODULE, **reward: object
) -> list[Problem]:
    """Problems of one custom reward, validated in a folder that holds `mine_checked.py`."""
    (tmp_path / "mine_checked.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_checked", raising=False)
    config = parse_config(
        {"rewards": [{"name": "exact_match"}, {"name": "mine", "kind": "custom", **reward}]}
    )
    problems = list(check_rewards(config))
    sys.modules.pop("mine_checked", None)
    return problems


@pytest.mark.parametrize(
    "reward",
    [
        {"function": "mine_checked:good"},
        {"function": "mine_checked:good", "arguments": {"k": 2}},
        {"function": "mine_checked:whole", "group": True},
        {"function": "mine_checked:Held.inside"},
        {"function": "mine_checked:math.hypot"},
    ],
)
def test_a_function_that_can_be_called_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: dict[str, object]
) -> None:
    path = list(sys.path)
    assert found(tmp_path, monkeypatch, **reward) == []
    assert sys.path == path


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        ({"function": "mine_checked:goood"}, "mine_checked has no function `goood`"),
        ({"function": "mine_checked:number"}, "mine_checked has no function `number`"),
        ({"function": "nowhere_at_all:f"}, "No module named 'nowhere_at_all'"),
        ({"function": "mine_checked:narrow"}, "cannot be called with a prompt, an answer: too many"),
        ({"function": "mine_checked:good", "arguments": {"j": 2}}, "unexpected keyword argument 'j'"),
        ({"function": "mine_checked:waits"}, "is a coroutine function"),
    ],
)
def test_a_function_that_cannot_be_called_is_named_with_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: dict[str, object], reason: str
) -> None:
    (problem,) = found(tmp_path, monkeypatch, **reward)
    assert (problem.key, problem.severity) == ("rewards.1.function", "error")
    assert reason in problem.reason


def test_a_module_that_raises_is_a_problem_and_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = found(tmp_path, monkeypatch, "1 / 0", function="mine_checked:good")
    assert "ZeroDivisionError: division by zero" in problem.reason


def test_an_entry_point_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem,) = found(tmp_path, monkeypatch, entry_point="brevity")
    assert problem.key == "rewards.1.entry_point"
    assert (
        "no entry point 'brevity' in the group slipstream.rewards; installed: none at all" in problem.reason
    )


def test_an_installed_entry_point_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "brevity-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: brevity\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[slipstream.rewards]\nbrevity = mine_checked:good\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert found(tmp_path, monkeypatch, entry_point="brevity") == []
