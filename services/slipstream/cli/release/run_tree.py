"""One key of a run's YAML, as the templates of the chart read it: without the defaults of the run."""

from collections.abc import Mapping
from typing import Any

Run = Mapping[str, Any]


def has_key(run: Run, key: str) -> bool:
    """Whether a dotted key is written in the run, also with null."""
    section, _, name = key.rpartition(".")
    tree = value_of(run, section) if section else run
    return isinstance(tree, Mapping) and name in tree


def value_of(run: Run, key: str, default: Any = None) -> Any:
    """The value of a dotted key, or the default where the key is absent or null."""
    value: Any = run
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return default if value is None else value


def rewards_of(run: Run, *kinds: str) -> list[Mapping[str, Any]]:
    """The rewards of some kinds; a kind that is left out is the name."""
    rewards = value_of(run, "rewards", [])
    listed = rewards if isinstance(rewards, list) else []
    return [
        reward
        for reward in listed
        if isinstance(reward, Mapping) and (reward.get("kind") or reward.get("name")) in kinds
    ]
