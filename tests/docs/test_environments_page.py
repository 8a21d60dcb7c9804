"""docs/environments.md: its environment can be played, its configuration is valid, its table is complete."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from actor.test_episodes import Numbers
from docs.test_verifier_pages import blocks, table
from rollout.fakes import prompt, scenario, turn
from slipstream.actor.environment import Episode, EpisodeBounds
from slipstream.actor.episode_run import Played, run_episode
from slipstream.cli.__main__ import main
from slipstream.cli.checks.environment import check_environment
from slipstream.cli.validate import source_table
from slipstream.config import load_config, parse_config
from slipstream.config.checks import check_config
from slipstream.config.openenv import OpenEnvEnvironment
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import Turn
from slipstream.tokens import Tokens

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
TOKENS = Tokens(make_tokenizer(max_tokens=64), context_tokens=64, max_new_tokens=16)


async def play(*answers: str) -> Played:
    """Run an episode of the environment of the page on `1+1=`, with these answers of the policy."""
    code, *_ = blocks(PAGE, "python")
    names: dict[str, Any] = {}
    exec(code, names)
    turns = list(answers)

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        ids = TOKENS.encode_answer(turns.pop(0))
        return turn(ids, (0, len(ids)))

    return await run_episode(
        names["SecondTry"](hint="?"),
        prompt(1),
        TOKENS.encode(prompt(1)),
        sample=sample,
        tokens=TOKENS,
        bounds=EpisodeBounds(max_tokens=16),
    )


@scenario
async def test_the_environment_of_the_page_allows_a_second_try() -> None:
    right, corrected = await play("2"), await play("7", "2")
    assert [(p.completion.text, p.turns, p.completion.rewards[0].value) for p in (right, corrected)] == [
        ("2", 1, 1.0),
        ("2", 2, 0.0),
    ]
    assert corrected.completion.mask == (1, 1, 0, 1, 1)


def test_the_configuration_of_the_page_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code, *_), (section, *_) = blocks(PAGE, "python"), blocks(PAGE, "yaml")
    (tmp_path / "my_environments.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    config = parse_config(yaml.safe_load(section))
    problems = [*check_config(config), *check_environment(config)]
    assert [str(problem) for problem in problems if problem.severity == "error"] == []


def test_the_configuration_of_rewards_by_turn_is_valid() -> None:
    section, *others = map(yaml.safe_load, blocks(PAGE, "yaml"))
    (by_turn,) = [each for each in others if "supervision" in each.get("algorithm", {})]
    problems = check_config(parse_config({**section, **by_turn}))
    assert [str(problem) for problem in problems if problem.severity == "error"] == []


def test_the_mixture_of_the_page_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, *_ = blocks(PAGE, "python")
    (tmp_path / "my_environments.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    (section,) = [text for text in blocks(PAGE, "yaml") if "kind: mixture" in text]
    config = parse_config(yaml.safe_load(section))
    problems = [*check_config(config), *check_environment(config)]
    assert [str(problem) for problem in problems if problem.severity == "error"] == []


def test_the_page_shows_the_table_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    example = ROOT / "examples/mixture.yaml"
    table = "\n".join(source_table(load_config(example)))
    assert f"```\n{table}\n```" in PAGE
    assert main(["validate", str(example)]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {line}\n" in printed for line in table.splitlines())
    assert "note:" not in printed


def test_the_configuration_of_openenv_is_valid_except_for_the_missing_program() -> None:
    (section,) = [text for text in blocks(PAGE, "yaml") if "kind: openenv" in text]
    config = parse_config(yaml.safe_load(section))
    problems = [*check_config(config), *check_environment(config)]
    errors = [problem.reason for problem in problems if problem.severity == "error"]
    assert errors == ["there is no program '/opt/number-env/bin/uvicorn'"]


def test_the_configuration_of_verifiers_is_valid_except_for_the_missing_python() -> None:
    (section,) = [text for text in blocks(PAGE, "yaml") if "kind: verifiers" in text]
    config = parse_config(yaml.safe_load(section))
    problems = [*check_config(config), *check_environment(config)]
    errors = [problem.reason for problem in problems if problem.severity == "error"]
    assert errors == ["there is no program '/opt/verifiers/bin/python'"]


def test_every_reward_of_openenv_is_in_its_table() -> None:
    rewards = table(PAGE, "reward of the kind `environment`")
    assert [row.strip("`") for row in rewards] == list(OpenEnvEnvironment.reward_names or ())


def test_the_table_lists_the_public_members_of_an_episode() -> None:
    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        raise AssertionError("nothing is sampled")

    episode = Episode(prompt(), (1,), sample=sample, tokens=Numbers(), bounds=EpisodeBounds(max_tokens=4))
    public = {name for name, _ in inspect.getmembers(episode) if not name.startswith("_")}
    listed = {re.findall(r"`(?:await )?(\w+)", member)[0] for member in table(PAGE, "member")}
    assert len(listed) == 9
    assert listed <= public
