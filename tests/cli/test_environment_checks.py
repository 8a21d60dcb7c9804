"""A user's own environment, tried when the run is validated."""

from pathlib import Path
from typing import Any

import pytest
from slipstream.cli.checks.environment import check_environment
from slipstream.config import ConfigError, parse_config
from slipstream.config.checks import check_config
from slipstream.config.problem import Problem

MODULE = """
print("imported")
class Game:
    def __init__(self, largest=9):
        if largest < 1: raise ValueError("largest is below 1")
    async def run(self, episode): ...
class Plain:
    def run(self, episode): ...
class Narrow:
    async def run(self): ...
class Empty: ...
def game(episode): ...
"""


def problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, **arguments: Any
) -> list[Problem]:
    (tmp_path / "mine_played.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return list(check_environment(configured(function=function, arguments=arguments)))


def configured(rewards: Any = ({"name": "exact_match"},), sections: Any = (), **environment: Any) -> Any:
    custom = {"kind": "custom", "function": "module:Name", **environment}
    tree = {"rewards": list(rewards), "data": {"kind": "addition", "environment": custom}}
    return parse_config({**tree, **dict(sections)})


def test_a_good_environment_has_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(tmp_path, monkeypatch, "mine_played:Game", largest=4) == []


@pytest.mark.parametrize(
    ("function", "arguments", "key", "words"),
    [
        ("no_module:Game", {}, "function", ("No module named 'no_module'", "PYTHONPATH")),
        ("mine_played:Gone", {}, "function", ("mine_played has no function `Gone`", "docs/environments.md")),
        (
            "mine_played:game",
            {},
            "function",
            ("is a function, and an environment is a class", "async def run"),
        ),
        ("mine_played:Plain", {}, "function", ("no coroutine function", "async def run")),
        ("mine_played:Narrow", {}, "function", ("run cannot be called with an episode", "async def run")),
        ("mine_played:Empty", {}, "function", ("has no `run`", "async def run")),
        ("mine_played:Game", {"large": 4}, "arguments", ("unexpected keyword", "its arguments are: largest")),
        ("mine_played:Game", {"largest": 0}, "arguments", ("ValueError: largest is below 1", "correct them")),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_line_with_key_and_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    arguments: dict[str, Any],
    key: str,
    words: tuple[str, str],
) -> None:
    (problem,) = problems(tmp_path, monkeypatch, function, **arguments)
    assert problem.key == f"data.environment.{key}"
    assert words[0] in problem.reason
    assert words[1] in problem.remedy
    assert "\n" not in str(problem)


def keys(config: Any) -> list[str]:
    return [problem.key for problem in check_config(config) if problem.severity == "error"]


def test_a_turn_longer_than_a_completion_is_refused() -> None:
    config = configured(turn_tokens=17, sections={"rollout": {"max_new_tokens": 16}})
    assert keys(config) == ["data.environment.turn_tokens"]


def test_a_reward_of_the_environment_needs_an_environment() -> None:
    rewards = [{"name": "exact_match"}, {"name": "solved", "kind": "environment"}]
    assert keys(configured(rewards)) == []
    assert keys(parse_config({"rewards": rewards})) == ["rewards.1.kind"]


def test_settings_that_need_plain_answers_are_refused() -> None:
    verbalized = {"rollout": {"sampling": "verbalized"}, "evaluation": {"sampling": "verbalized"}}
    assert keys(configured(sections=verbalized)) == ["rollout.sampling", "evaluation.sampling"]


def test_the_old_key_is_named_with_its_successor() -> None:
    with pytest.raises(ConfigError, match=r"rollout.environment: unknown key; it is `data.environment` here"):
        parse_config({"rollout": {"environment": "single_turn"}})


def test_the_parts_of_a_mixture_share_one_environment() -> None:
    part = {"kind": "addition", "environment": {"kind": "custom", "function": "module:Name"}}
    for data in ({"kind": "mixture", "of": [part, part]}, {"kind": "judging", "of": part}):
        with pytest.raises(ConfigError, match=r"move it to data\.environment"):
            parse_config({"data": data})
