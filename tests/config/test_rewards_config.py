"""The rewards of a configuration: kinds, names, and the errors of wrong ones."""

import pytest
import yaml
from slipstream.config import ConfigError, parse_config
from slipstream.config.load import dump_config, dump_given
from slipstream.config.rewards import CustomConfig, ExactMatchConfig, FormatConfig, RewardSection


def rewards(*trees: dict[str, object]) -> tuple[RewardSection, ...]:
    return parse_config({"rewards": list(trees)}).rewards


def complaint(*trees: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config({"rewards": list(trees)})
    return str(caught.value)


def test_the_kind_is_the_name_unless_it_is_given() -> None:
    first, second = rewards({"name": "exact_match"}, {"name": "tags", "kind": "format", "pattern": "x"})
    assert first == ExactMatchConfig(name="exact_match")
    assert second == FormatConfig(name="tags", pattern="x")


def test_one_kind_may_be_there_under_several_names() -> None:
    tags = rewards(
        {"name": "a", "kind": "format", "pattern": "a"}, {"name": "b", "kind": "format", "pattern": "b"}
    )
    assert [(tag.name, tag.kind) for tag in tags] == [("a", "format"), ("b", "format")]


@pytest.mark.parametrize("dump", [dump_config, dump_given])
def test_rewards_read_back_equal(dump: object) -> None:
    own = {"name": "own", "kind": "custom", "function": "a.b:c", "arguments": {"k": [1, 2]}, "weight": 0.5}
    config = parse_config({"rewards": [{"name": "exact_match"}, own]})
    assert parse_config(yaml.safe_load(dump(config))) == config  # type: ignore[operator]
    assert isinstance(config.rewards[1], CustomConfig)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (
            {"name": "exact_mach"},
            "rewards.1.name: is 'exact_mach', which is no kind, and there is no `kind`; did you mean "
            "`exact_match`? The kinds are exact_match, format, ",
        ),
        (
            {"name": "tags", "kind": "formt"},
            "rewards.1.kind: is 'formt', which is no kind; did you mean `format`?",
        ),
        ({"weight": 1}, "needs `kind` to say which one it is; set `kind` to one of exact_match, "),
        (
            {"nam": "exact_match"},
            "rewards.1.nam: unknown key; did you mean `name`? It is one of exact_match, ",
        ),
        ("exact_match", 'needs a section of keys with `kind`, not "exact_match"; set `kind` to one of '),
        ({"kind": "exact_match"}, "name: is required, and missing; add it"),
        ({"name": "format"}, "pattern: Field required"),
        (
            {"name": "exact_match", "when": {"source": []}},
            "rewards.1.when.source: names no source, so the reward would score nothing; name the sources "
            "that it scores, or leave `when` out",
        ),
        ({"name": "format", "patern": "x", "pattern": "x"}, "patern: unknown key; did you mean `pattern`?"),
        ({"name": "exact_match", "pattern": "x"}, "pattern: unknown key"),
        ({"name": "Tags", "kind": "exact_match"}, "name: String should match pattern"),
        ({"name": "exact_match", "weight": float("nan")}, "weight: Input should be a finite number"),
        ({"name": "own", "kind": "custom"}, "either function (`module:function`) or entry_point"),
        (
            {"name": "own", "kind": "custom", "function": "a:b", "entry_point": "c"},
            "either function (`module:function`) or entry_point",
        ),
        ({"name": "own", "kind": "custom", "function": "a.b.c"}, "function: String should match pattern"),
        (
            {"name": "own", "kind": "custom", "function": "a:b", "timeout_seconds": 0},
            "timeout_seconds: Input should be greater than 0",
        ),
    ],
)
def test_a_wrong_reward_is_explained(tree: object, reason: str) -> None:
    message = complaint({"name": "countdown"}, tree)
    assert "rewards.1" in message
    assert reason in message
