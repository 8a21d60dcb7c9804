"""Key names of other frameworks: the error names Slipstream's key."""

import pytest
from slipstream.config import ConfigError, parse_config
from slipstream.config.foreign_keys import FOREIGN_KEYS
from slipstream.config.schema_keys import paths

PATHS = {path for several in paths().values() for path in several}


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_what_a_key_is_called_here_is_a_key(key: str) -> None:
    target, _ = FOREIGN_KEYS[key]
    assert target in PATHS or f"{target}[]" in PATHS


def error_of(tree: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(tree)
    return str(caught.value)


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_a_foreign_key_is_answered_wherever_it_is_unknown(key: str) -> None:
    target, _ = FOREIGN_KEYS[key]
    tree: object = 1
    for part in reversed(key.split(".")):
        tree = {part: tree}
    if key.startswith(("data.", "model.")):
        tree = {"trainer": tree}
    assert isinstance(tree, dict)
    assert f"{key}: unknown key; it is `{target}` here" in error_of(tree)


def test_a_whole_section_of_another_framework_is_answered_key_by_key() -> None:
    actor = {"ppo_mini_batch_size": 64, "optim": {"lr": 1e-6}, "unheard_of": 1}
    message = error_of({"actor_rollout_ref": {"actor": actor, "rollout": {"n": 5}}})

    assert [line.strip().partition(" (")[0] for line in message.splitlines()[1:]] == [
        "actor_rollout_ref.actor.ppo_mini_batch_size: unknown key; it is `learner.minibatches` here",
        "actor_rollout_ref.actor.optim.lr: unknown key; it is `learner.learning_rate` here",
        "actor_rollout_ref.rollout.n: unknown key; it is `rollout.group_size` here",
    ]


@pytest.mark.parametrize(
    ("tree", "meant"),
    [
        ({"rollout": {"n": 8}}, "rollout.n: unknown key; it is `rollout.group_size` here"),
        ({"learner": {"beta": 0.1}}, "learner.beta: unknown key; it is `algorithm.kl.coefficient` here"),
        (
            {"algorithm": {"objective": {"kind": "ppo_clip", "epsilon": 0.2}}},
            "it is `algorithm.objective.clip_low` here (and algorithm.objective.clip_high)",
        ),
        ({"data": {"kind": "file", "path": "x", "train_files": "y"}}, "it is `data.path` here"),
    ],
)
def test_a_foreign_key_is_answered_inside_our_sections(tree: dict[str, object], meant: str) -> None:
    assert meant in error_of(tree)
