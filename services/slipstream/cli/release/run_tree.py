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


def environments_of(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return the environments of the run by their keys: that of the data, and those of the sources of a
    mixture."""
    sources = {f"data.of.{number}": each for number, each in enumerate(_list(value_of(run, "data.of")))}
    environments = {
        f"{key}.environment": section.get("environment")
        for key, section in {"data": value_of(run, "data"), **sources}.items()
        if isinstance(section, Mapping)
    }
    return {key: section for key, section in environments.items() if isinstance(section, Mapping)}


def tools_of(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return the tools of all environments of the run by their keys."""
    return {
        f"{key}.tools.{number}": tool
        for key, environment in environments_of(run).items()
        for number, tool in enumerate(_list(environment.get("tools")))
        if isinstance(tool, Mapping)
    }


def rewards_of(run: Run, *kinds: str) -> list[Mapping[str, Any]]:
    """Return the rewards of some kinds. The kind of a reward defaults to its name."""
    return [
        reward
        for reward in _list(value_of(run, "rewards"))
        if isinstance(reward, Mapping) and (reward.get("kind") or reward.get("name")) in kinds
    ]


def _list(value: Any) -> list[Any]:
    """Return a value of the run that should be a list, and no items if it is none."""
    return value if isinstance(value, list) else []
