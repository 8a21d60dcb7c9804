"""Sources of a mixture, looked at when the run is validated: rows, own rewards, environments."""

import json
from pathlib import Path
from typing import Any

import pytest
from slipstream.actor.adapters.verifiers_rows import environment_of
from slipstream.cli.checks.environment import check_environment
from slipstream.cli.checks.prompts import check_prompts
from slipstream.cli.checks.rewards import check_rewards
from slipstream.cli.checks.verifier import check_verifier
from slipstream.cli.validate import source_table
from slipstream.config import ConfigError, RunConfig, parse_config

SUMS: dict[str, Any] = {"kind": "addition", "digits": 1, "name": "sums"}


def rows(folder: Path, *answers: str) -> dict[str, Any]:
    """Return a source with a row for each of these answers."""
    file = folder / "rows.jsonl"
    lines = [json.dumps({"prompt": f"question {i}:", "answer": a}) for i, a in enumerate(answers)]
    file.write_text("\n".join(lines * 5))
    return {"kind": "file", "name": "rows", "path": str(file), "held_out_fraction": 0.3}


def mixed(*of: dict[str, Any], rewards: list[dict[str, Any]], **sections: Any) -> RunConfig:
    data = {"kind": "mixture", "of": list(of)}
    return parse_config({"data": data, "rewards": rewards, **sections})


@pytest.mark.parametrize(("names", "refused"), [(["sums"], False), (["sums", "rows"], True)])
def test_a_ground_truth_is_needed_by_the_rewards_that_apply_only(
    tmp_path: Path, names: list[str], refused: bool
) -> None:
    rewards = [
        {"name": "numeric_match", "when": {"source": names}},
        {"name": "format", "pattern": "x", "when": {"source": ["rows"]}},
    ]
    config = mixed(SUMS, rows(tmp_path, "no number", "none either", "nor here"), rewards=rewards)
    reasons = [problem.reason for problem in check_prompts(config, None) if "cannot judge" in problem.reason]
    assert bool(reasons) == refused, reasons


@pytest.mark.parametrize(("names", "truths"), [(["sums"], set()), (["rows"], {"x +", "2x"})])
def test_the_verifier_is_asked_about_ground_truths_of_the_sources_that_a_reward_scores(
    tmp_path: Path, names: list[str], truths: set[str]
) -> None:
    requests: list[Any] = []

    def ask(request: str) -> dict[str, Any]:
        requests.append(json.loads(request)["truths"]["math"])
        return {"refusals": [], "unread": {}, "left": 0}

    rewards = [{"name": "math", "when": {"source": names}}]
    config = mixed(SUMS, rows(tmp_path, "x +", "2x"), rewards=rewards)
    assert list(check_verifier(config, if_missing="note", ask=ask)) == []
    from_rows = {answer for name, answer, _ in requests[0] if name.startswith("rows")}
    assert from_rows == truths


def test_a_reward_of_the_user_is_called_with_a_prompt_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def picky(prompt, answer): return float({'sums': 1}[prompt.source])"
    (tmp_path / "mine_of_sums.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    custom = {"name": "own", "kind": "custom", "function": "mine_of_sums:picky"}
    sorting = {"kind": "sort_digits", "name": "sorting"}
    for when, severity in (({"source": ["sums"]}, "note"), (None, "error")):
        config = mixed(sorting, SUMS, rewards=[{"name": "exact_match"}, {**custom, "when": when}])
        (problem,) = check_rewards(config)
        assert problem.severity == severity, problem


def test_a_source_without_demonstrations_keeps_no_reward_from_being_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_all.py").write_text("def exact(prompt, answer): return 'much'")
    monkeypatch.chdir(tmp_path)
    custom = {"name": "own", "kind": "custom", "function": "mine_of_all:exact"}
    seeds = {"kind": "seeds", "prompt": "play:"}
    config = mixed(seeds, SUMS, rewards=[{"name": "exact_match", "when": {"source": ["sums"]}}, custom])
    (problem,) = check_rewards(config)
    assert (problem.key, problem.severity) == ("rewards.1.function", "error")


def test_an_environment_that_cannot_be_made_is_named_by_the_key_of_its_source() -> None:
    missing = {"kind": "custom", "function": "nowhere_at_all:Game"}
    broken = {"kind": "sort_digits", "environment": missing}
    config = mixed(SUMS, broken, {**broken, "name": "again"}, rewards=[{"name": "exact_match"}])
    assert [problem.key for problem in check_environment(config)] == [
        "data.of.1.environment.function",
        "data.of.2.environment.function",
    ]
    shared = {"kind": "mixture", "environment": missing, "of": [SUMS, {"kind": "sort_digits"}]}
    config = parse_config({"data": shared})
    assert [problem.key for problem in check_environment(config)] == ["data.environment.function"]


def test_the_table_has_a_row_for_each_source_and_a_column_for_each_reward() -> None:
    game = {"kind": "custom", "function": "games:Game"}
    played = {"kind": "sort_digits", "share": 0.5, "environment": game, "evaluation_reward": "solved"}
    rewards = [
        {"name": "exact_match", "when": {"source": ["sums"]}},
        {"name": "solved", "kind": "environment", "weight": 2, "when": {"source": ["sort_digits"]}},
        {"name": "format", "pattern": ".", "weight": 0.1},
    ]
    assert source_table(mixed(SUMS, played, rewards=rewards)) == [
        "source       share  environment  exact_match  solved  format",
        "sums         66.7%  single_turn  1*           -       0.1",
        "sort_digits  33.3%  custom       -            2*      0.1",
        "weight of each reward; - does not apply; * its mean is the accuracy",
    ]
    assert source_table(parse_config({})) == []


def test_the_rows_of_a_verifiers_environment_are_those_of_the_source_that_is_named() -> None:
    one, other = (
        {"kind": "verifiers", "python": "/opt/venv/bin/python", "arguments": {"taskset": {"id": name}}}
        for name in ("wordle", "chess")
    )
    with_one = mixed(SUMS, {**SUMS, "name": "b", "environment": one}, rewards=[{"name": "exact_match"}])
    assert environment_of(with_one, None).arguments == one["arguments"]
    with_both = mixed(
        {**SUMS, "name": "a", "environment": other},
        {**SUMS, "name": "b", "environment": one},
        rewards=[{"name": "exact_match"}],
    )
    assert environment_of(with_both, "a").arguments == other["arguments"]
    with pytest.raises(ConfigError, match="several sources have one: name it by --source, one of a, b"):
        environment_of(with_both, None)
    with pytest.raises(ConfigError, match="--source c: no source of this name"):
        environment_of(with_both, "c")
    with pytest.raises(ConfigError, match=r"data\.environment is no environment of the kind `verifiers`"):
        environment_of(parse_config({}), None)
