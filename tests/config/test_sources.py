"""Sources of a mixture: names, shares, environments, rewards, and what is refused."""

from typing import Any

import pytest
import yaml
from slipstream.config import ConfigError, RunConfig, parse_config
from slipstream.config.checks import check_config
from slipstream.config.load import dump_config, dump_given
from slipstream.config.sources import BySource, UnknownSource, applying_rewards, python_tools_of, sources
from slipstream.config.unique_keys import UniqueKeys

GAME = {"kind": "custom", "function": "games:Game", "turn_tokens": 1}
TOOLS = {"kind": "chat_tools", "tools": [{"kind": "python", "memory_mib": 256}]}
SUMS: dict[str, Any] = {"kind": "addition", "name": "sums", "share": 3}
PLAYED: dict[str, Any] = {"kind": "sort_digits", "name": "game", "environment": GAME}
REWARDS: list[dict[str, Any]] = [
    {"name": "exact_match", "when": {"source": ["sums"]}},
    {"name": "solved", "kind": "environment", "when": {"source": ["game"]}},
]


def mixed(*of: dict[str, Any], rewards: list[dict[str, Any]] | None = None, **sections: Any) -> RunConfig:
    data = {"kind": "mixture", "of": list(of) or [SUMS, {**PLAYED, "evaluation_reward": "solved"}]}
    return parse_config({"data": data, "rewards": rewards or REWARDS, **sections})


def errors(config: RunConfig) -> list[tuple[str, str]]:
    return [(p.key, str(p)) for p in check_config(config) if p.severity == "error"]


def test_each_source_has_its_share_its_environment_and_its_rewards() -> None:
    sums, game = sources(mixed())
    assert (sums.name, sums.share, sums.environment.kind) == ("sums", 0.75, "single_turn")
    assert (game.name, game.share, game.environment.kind) == ("game", 0.25, "custom")
    assert [[reward.name for reward in each.rewards] for each in (sums, game)] == [
        ["exact_match"],
        ["solved"],
    ]
    assert [each.evaluation_reward for each in (sums, game)] == ["exact_match", "solved"]
    assert errors(mixed()) == []


def test_a_source_that_names_no_environment_has_that_of_the_mixture() -> None:
    data = {
        "kind": "mixture",
        "environment": TOOLS,
        "of": [{"kind": "addition"}, {"kind": "addition", "environment": {"kind": "single_turn"}}, PLAYED],
    }
    config = parse_config({"data": data})
    assert [each.environment.kind for each in sources(config)] == ["chat_tools", "single_turn", "custom"]
    assert [each.environment_key for each in sources(config)] == [
        "data.environment",
        "data.of.1.environment",
        "data.of.2.environment",
    ]
    assert [tool.memory_mib for tool in python_tools_of(config)] == [256]


@pytest.mark.parametrize("dump", [dump_config, dump_given])
def test_a_configuration_that_is_written_and_read_again_has_the_same_sources(dump: Any) -> None:
    single = {"kind": "addition", "environment": {"kind": "single_turn"}}
    data = {"kind": "mixture", "environment": GAME, "of": [single, {**PLAYED, "share": 0.3}]}
    config = parse_config({"data": data, "rewards": REWARDS[:1]})
    again = parse_config(yaml.load(dump(config), Loader=UniqueKeys))
    assert sources(again) == sources(config)


def test_sources_without_a_name_have_their_kind_or_task_and_a_number_where_it_is_taken() -> None:
    puzzles = {"kind": "reasoning_gym", "task": "leg_counting"}
    of = ({"kind": "addition"}, {"kind": "addition"}, puzzles, {"kind": "sort_digits", "name": "addition_3"})
    more = {"kind": "addition"}
    names = [each.name for each in sources(mixed(*of, more, rewards=[{"name": "exact_match"}]))]
    assert names == ["addition", "addition_2", "leg_counting", "addition_3", "addition_4"]


def test_a_run_without_a_mixture_has_one_source_for_every_prompt() -> None:
    config = parse_config({"data": {"kind": "addition", "environment": GAME}})
    (source,) = sources(config)
    assert (source.name, source.key, source.share) == ("addition", "data", 1.0)
    assert applying_rewards(config) is None
    assert BySource({"addition": 5}).of("anything") == 5


def test_a_prompt_of_an_unknown_source_is_refused_by_its_name() -> None:
    with pytest.raises(UnknownSource, match="source 'chess', and the sources of this run are sums, game"):
        BySource({"sums": 1, "game": 2}).of("chess")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"kind": "addition", "share": 2}, "data: has `share`, and only the sources of a mixture have one"),
        (
            {"kind": "addition", "name": "sums"},
            "leave data.name out, or make it a source of data of the kind",
        ),
        ({"kind": "judging", "of": SUMS}, "has `name`, and only the sources of a mixture have one"),
        ({"kind": "mixture", "of": [SUMS, SUMS]}, "2 sources have the name 'sums'; give each its own"),
        ({"kind": "mixture", "of": [{**SUMS, "share": 0}, PLAYED]}, "share: Input should be greater than 0"),
        ({"kind": "mixture", "of": [{**SUMS, "name": "Two words"}, PLAYED]}, "name: String should match"),
        ({"kind": "mixture", "name": "all", "of": [SUMS, PLAYED]}, "unknown key"),
    ],
)
def test_keys_of_a_source_are_refused_where_they_mean_nothing(data: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"data": data})
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("config", "key", "reason"),
    [
        (
            mixed(rewards=[{"name": "exact_match"}, {**REWARDS[1], "when": {"source": ["game", "chess"]}}]),
            "rewards.1.when.source",
            "has 'chess', and the sources of data.of are sums, game; name one of them",
        ),
        (
            mixed(rewards=[{"name": "exact_match", "when": {"source": ["sum"]}}, REWARDS[1]]),
            "rewards.0.when.source",
            "has 'sum', and the sources of data.of are sums, game; did you mean `sums`? Else name one of "
            "them, or give a source this `name`",
        ),
        (
            mixed(rewards=[REWARDS[1], {"name": "exact_match", "weight": 0.0}]),
            "data.of.0",
            "no reward with a weight other than 0 applies to the source sums, so there is nothing to learn "
            "from it; add sums to the `when.source` of a reward, or leave the source out",
        ),
        (
            mixed(SUMS, PLAYED),
            "evaluation.reward",
            "is `exact_match`, which does not apply to the source game (its rewards: solved); set "
            "data.of.1.evaluation_reward to `solved`",
        ),
        (
            mixed({**SUMS, "evaluation_reward": "solved"}, {**PLAYED, "evaluation_reward": "solved"}),
            "data.of.0.evaluation_reward",
            "is `solved`, which does not apply to the source sums",
        ),
        (
            mixed(rewards=[{"name": "exact_match"}, {"name": "solved", "kind": "environment"}]),
            "rewards.1.kind",
            "is `environment`, and data.of.0.environment (source sums) is `single_turn`, which gives no "
            "rewards; name the sources with a solved in rewards.1.when.source",
        ),
        (
            parse_config({"rewards": [{**REWARDS[0]}]}),
            "rewards.0.when",
            "names sources, and data is no mixture",
        ),
        (
            parse_config(
                {
                    "data": {
                        "kind": "mixture",
                        "environment": GAME,
                        "of": [PLAYED, {**SUMS, "environment": {"kind": "single_turn"}}],
                    }
                }
            ),
            "data.environment",
            "is set, and every source of the mixture has an environment of its own; leave it out",
        ),
    ],
    ids=[
        "unknown",
        "misspelled",
        "unrewarded",
        "accuracy",
        "own accuracy",
        "single turn",
        "no mixture",
        "unused",
    ],
)
def test_what_cannot_work_is_refused_with_the_key_and_the_remedy(
    config: RunConfig, key: str, reason: str
) -> None:
    first, *_ = errors(config)
    assert first[0] == key
    assert reason in first[1]


def test_a_misspelled_source_is_one_problem() -> None:
    rewards = [{"name": "exact_match", "when": {"source": ["sum"]}}, REWARDS[1]]
    assert [key for key, _ in errors(mixed(rewards=rewards))] == ["rewards.0.when.source"]


def test_the_slowest_environment_of_all_sources_is_in_the_time_of_a_group() -> None:
    of = (
        {**PLAYED, "environment": {**GAME, "seconds": 500}},
        {**SUMS, "environment": {**GAME, "seconds": 100}},
    )
    rollout = {"engine": "vllm", "group_timeout_seconds": 400, "max_new_tokens": 16}
    notes = [p for p in check_config(mixed(*of, rollout=rollout)) if p.key == "rollout.group_timeout_seconds"]
    assert ["500 s beside sampling (data.of.0.environment.seconds)" in note.reason for note in notes] == [
        True
    ]
    enough = mixed(*of, rollout={**rollout, "group_timeout_seconds": 501})
    assert "rollout.group_timeout_seconds" not in [p.key for p in check_config(enough)]


def test_a_default_name_outside_of_a_mixture_is_no_condition() -> None:
    config = parse_config({"rewards": [{"name": "exact_match", "when": {"source": ["addition"]}}]})
    assert [key for key, _ in errors(config)] == ["rewards.0.when"]


def test_with_rewards_by_step_each_source_has_steps_of_its_own() -> None:
    process = {"algorithm": {"preset": "grpo", "supervision": "process"}}
    of = (SUMS, {**PLAYED, "evaluation_reward": "solved"})
    assert [key for key, _ in errors(mixed(*of, **process))] == ["algorithm.supervision"]
    steps = {
        "name": "steps",
        "kind": "custom",
        "function": "mine:steps",
        "when": {"source": ["sums"]},
    }
    assert errors(mixed(*of, rewards=[*REWARDS, steps], **process)) == []


def test_a_self_judge_needs_other_rewards_in_each_source_to_which_it_applies() -> None:
    judge = {"name": "self_judge", "weight": 1.0}
    of = (SUMS, {"kind": "sort_digits"})
    sums_alone = [{"name": "exact_match", "when": {"source": ["sums"]}}, judge]
    texts = [text for key, text in errors(mixed(*of, rewards=sums_alone)) if key == "rewards.1.weight"]
    assert len(texts) == 1
    assert "0% of all weights of the source sort_digits" in texts[0]
    judge_of_sums = {**judge, "when": {"source": ["sums"]}}
    judged = mixed(*of, rewards=[{"name": "exact_match"}, judge_of_sums])
    assert errors(judged) == []


def test_a_stage_that_samples_first_has_one_reward_that_decides_for_all_sources() -> None:
    stage = {"name": "select", "kind": "rejection_sampling"}
    own = mixed(stages=[stage])
    assert ("data.of.1.evaluation_reward") in [key for key, _ in errors(own)]
