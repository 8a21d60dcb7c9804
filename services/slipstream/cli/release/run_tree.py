"""One key of a run's YAML, as the templates of the chart read it: without the defaults of the run."""

from collections.abc import Mapping
from typing import Any

Run = Mapping[str, Any]


def has_key(run: Run, key: str) -> bool:
    """Return whether the run has a dotted key, also with null."""
    section, _, name = key.rpartition(".")
    tree = value_of(run, section) if section else run
    return isinstance(tree, Mapping) and name in tree


def value_of(run: Run, key: str, default: Any = None) -> Any:
    """Return the value of a dotted key, or the default if the key is absent or null."""
    value: Any = run
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return default if value is None else value


def tools_of(run: Run) -> list[Mapping[str, Any]]:
    """Return the tools of all environments of the run: that of the data, and those of the sources of a
    mixture."""
    of = value_of(run, "data.of", [])
    sections = [value_of(run, "data", {}), *(of if isinstance(of, list) else ())]
    listed = [value_of(each, "environment.tools", []) for each in sections if isinstance(each, Mapping)]
    return [
        tool for tools in listed if isinstance(tools, list) for tool in tools if isinstance(tool, Mapping)
    ]


def rewards_of(run: Run, *kinds: str) -> list[Mapping[str, Any]]:
    """Return the rewards of some kinds. The kind of a reward defaults to its name."""
    rewards = value_of(run, "rewards", [])
    listed = rewards if isinstance(rewards, list) else []
    return [
        reward
        for reward in listed
        if isinstance(reward, Mapping) and (reward.get("kind") or reward.get("name")) in kinds
    ]
