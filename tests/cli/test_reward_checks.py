"""A user's own rewards, tried when the run is validated."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from slipstream.cli.checks.rewards import check_rewards
from slipstream.config import parse_config
from slipstream.config.checks import Problem

MODULE = """
import math, os, time
from slipstream.verifier.reward import Verdict, invalid
print("imported")
def exact(prompt, answer, *, k=1): print("called"); return k * (answer.text == prompt.answer)
def verdict(prompt, answer): return Verdict(value=0.5) if answer.text else invalid("empty")
def whole(prompt, answers): return [len(a.text) for a in answers]
def raises(prompt, answer): return answer.nothing
def raises_on_empty(prompt, answer): return 1 / len(answer.text)
def none(prompt, answer): pass
def text(prompt, answer): return "1.0"
def nan(prompt, answer): return math.nan
def wrong_count(prompt, answers): return [0.0]
def trl(completions, **kwargs): return [0.0 for _ in completions]
def trl_prompts(prompts, completions, **kwargs): return [0.0 for _ in completions]
def numbers(prompt, answer): return [1.0]
def narrow(prompt): return 0
async def waits(prompt, answer): return 0
def slow(prompt, answer): time.sleep(60)
def dies(prompt, answer): os._exit(3)
number = 3
class Held:
    @staticmethod
    def inside(prompt, answer): return 0
"""


def problems_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *rewards: dict[str, Any],
    text: str = MODULE,
    **sections: Any,
) -> list[Problem]:
    """Return the problems of custom rewards in a folder with `mine_checked.py`."""
    (tmp_path / "mine_checked.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    custom = [{"name": f"mine{i}", "kind": "custom", **reward} for i, reward in enumerate(rewards)]
    return list(check_rewards(parse_config({"rewards": [{"name": "math"}, *custom], **sections})))


def test_the_scores_of_a_right_and_of_an_empty_answer_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards: list[dict[str, Any]] = [
        {"function": "mine_checked:exact"},
        {"function": "mine_checked:exact", "arguments": {"k": 2}},
        {"function": "mine_checked:whole", "group": True},
        {"function": "mine_checked:verdict"},
        {"function": "mine_checked:Held.inside"},
    ]
    path = list(sys.path)
    problems = problems_of(tmp_path, monkeypatch, *rewards)

    assert sys.path == path
    assert "mine_checked" not in sys.modules
    assert {problem.severity for problem in problems} == {"note"}
    right, doubled, group_score, verdict, same = problems
    assert right.key == "rewards.1.function"
    assert right.reason.startswith("`mine0` says 1 of the right answer '")
    assert right.reason.endswith(", and 0 of an empty one")
    assert doubled.reason.startswith("`mine1` says 2 of")
    assert re.match(r"`mine2` says [23] of .*, and 0 of an empty one", group_score.reason)
    assert verdict.reason.startswith("`mine3` says 0.5 of")
    assert verdict.reason.endswith(", and 0 (invalid: empty) of an empty one")
    assert same.remedy == "it should tell them apart, or nothing is learned"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"function": "mine_checked:goood"}, "mine_checked has no function `goood`"),
    ({"function": "mine_checked:number"}, "mine_checked has no function `number`"),
    ({"function": "nowhere_at_all:f"}, "No module named 'nowhere_at_all'"),
    ({"function": "mine_checked:narrow"}, "cannot be called with a prompt, an answer: too many"),
    ({"function": "mine_checked:exact", "arguments": {"j": 2}}, "unexpected keyword argument 'j'"),
    ({"function": "mine_checked:waits"}, "is a coroutine function"),
    ({"function": "mine_checked:raises"}, ": AttributeError: 'Answer' object has no attribute 'nothing'"),
    ({"function": "mine_checked:raises_on_empty"}, "called with an empty answer to prompt "),
    ({"function": "mine_checked:none"}, "a score is a number, a bool or a Verdict, got NoneType"),
    ({"function": "mine_checked:text"}, "a score is a finite number, got '1.0'"),
    ({"function": "mine_checked:nan"}, "a score is a finite number, got nan"),
    ({"function": "mine_checked:numbers"}, "a score is a number, a bool or a Verdict, got list"),
    ({"function": "mine_checked:wrong_count", "group": True}, "returned 1 scores for 2 answers"),
    ({"function": "mine_checked:trl"}, "takes `completions`, a list, which is the signature of TRL"),
    ({"function": "mine_checked:trl_prompts", "group": True}, "a list, which is the signature of TRL"),
    ({"function": "mine_checked:slow", "timeout_seconds": 0.3}, "no verdict within"),
    ({"function": "mine_checked:dies"}, ": the child ended with status "),
    ({"entry_point": "brevity"}, "no entry point 'brevity' in the group slipstream.rewards; installed: none"),
]


INTERNAL = ("JobFailed", "WorkerLost")
"""Internal exceptions, whose names mean nothing to the author of a reward."""


def test_an_invalid_reward_is_an_error_with_the_reason_and_the_expected_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = problems_of(tmp_path, monkeypatch, *(reward for reward, _ in REFUSED))

    assert len(problems) == len(REFUSED)
    for position, (problem, (reward, reason)) in enumerate(zip(problems, REFUSED, strict=True), 1):
        assert problem.severity == "error", reward
        assert problem.key == f"rewards.{position}.{'entry_point' if 'entry_point' in reward else 'function'}"
        assert reason in problem.reason, reward
        assert not set(INTERNAL) & set(problem.reason.replace(":", " ").split()), reward
        if "cannot be imported" not in problem.reason:
            wanted = "answers, **arguments) and returns as many" if reward.get("group") else "a finite number"
            assert wanted in problem.remedy


def test_each_task_of_a_mixture_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def picky(prompt, answer): return int(prompt.task == 'addition' or prompt.fields['nothing'])"
    data = {"kind": "mixture", "of": [{"kind": "addition"}, {"kind": "sort_digits"}]}
    (problem,) = problems_of(tmp_path, monkeypatch, {"function": "mine_checked:picky"}, text=text, data=data)
    assert problem.severity == "error"
    assert "KeyError: 'nothing'" in problem.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(5)", "the process that tried them ended"),
    ],
)
def test_a_module_that_raises_or_exits_is_a_problem_and_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    (problem,) = problems_of(tmp_path, monkeypatch, {"function": "mine_checked:exact"}, text=text)
    assert problem.severity == "error"
    assert reason in problem.reason


def test_a_reward_of_an_installed_entry_point_is_loaded_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "brevity-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: brevity\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[slipstream.rewards]\nbrevity = mine_checked:exact\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    (problem,) = problems_of(tmp_path, monkeypatch, {"entry_point": "brevity"})
    assert problem.severity == "note"


@pytest.mark.parametrize(("extract", "count"), [("whole", 1), ("answer_tag", 0)])
def test_a_format_that_contradicts_exact_match_is_a_note(extract: str, count: int) -> None:
    form = {"name": "form", "kind": "format", "pattern": "(?s).*<answer>.*</answer>"}
    exact = {"name": "exact_match", "extract": extract}
    problems = list(check_rewards(parse_config({"rewards": [exact, form]})))
    assert [problem.severity for problem in problems] == ["note"] * count
    assert all("no ground truth has the form that `form` wants" in problem.reason for problem in problems)


def test_a_format_that_matches_the_ground_truths_is_no_problem() -> None:
    rewards = [{"name": "exact_match"}, {"name": "format", "pattern": r"\d+"}]
    assert list(check_rewards(parse_config({"rewards": rewards}))) == []
