"""From a YAML file, --set overrides and the environment to one frozen RunConfig, or one readable error."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from slipstream.config.explain import explain
from slipstream.config.paths import located
from slipstream.config.schema import RunConfig
from slipstream.config.unique_keys import DuplicateKey, UniqueKeys

# Environment variables that a pod reads, and the key that each one sets.
ENVIRONMENT = {
    "SLIPSTREAM_REPLAY_ADDRESS": "replay.address",
    "SLIPSTREAM_VERIFIER_ADDRESS": "verifier.address",
    "SLIPSTREAM_TEACHER_ADDRESS": "teacher.address",
    "SLIPSTREAM_LEARNER_ADDRESS": "learner.address",
    "SLIPSTREAM_ROLLOUT_ADDRESS": "rollout.address",
    "SLIPSTREAM_REDIS_URL": "replay.redis_url",
    "SLIPSTREAM_WEIGHTS_HOST": "weights.host",
    "SLIPSTREAM_METRICS_HOST": "telemetry.host",
    "SLIPSTREAM_METRICS_PORT": "telemetry.port",
    "SLIPSTREAM_RUN_DIR": "run_dir",
}


class ConfigError(ValueError):
    """The configuration is wrong; the message names every key at fault and what to do."""


def load_config(files: Path | Sequence[Path], overrides: Iterable[str] = ()) -> RunConfig:
    """Read YAML files, each laid over the one before, apply `key=value` overrides (dotted keys), validate.

    Where two files have the same section its keys are merged; any other value replaces the earlier one.
    Relative paths in a file stay relative to the working directory. Errors: ConfigError.
    """
    paths = [files] if isinstance(files, Path) else list(files)
    tree: dict[str, Any] = {}
    for path in paths:
        tree = laid_over(tree, _read(path))
    return parse_config(tree, overrides, source=", ".join(map(str, paths)))


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees of keys as one; what stands above wins, a section at a time."""
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        both = isinstance(under, dict) and isinstance(value, dict)
        merged[key] = laid_over(under, value) if both else value  # type: ignore[arg-type]
    return merged


def parse_config(
    tree: Mapping[str, Any], overrides: Iterable[str] = (), *, source: str = "config"
) -> RunConfig:
    """Validate a tree of keys after applying overrides. Errors: ConfigError."""
    merged = dict(tree)
    for override in overrides:
        keys, value = _split(override)
        try:
            merged = set_key(merged, keys, value)
        except ConfigError as error:
            raise ConfigError(f"--set {override}: {error}") from error
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        lines = "\n".join(f"  {line}" for problem in error.errors() for line in explain(problem))
        raise ConfigError(f"{source}: the configuration is not valid\n{lines}") from error


def apply_environment(config: RunConfig, environment: Mapping[str, str] | None = None) -> RunConfig:
    """The configuration with the addresses that the environment names (see ENVIRONMENT).

    A variable is text and not YAML, in which `[::]` would be a list and an IPv6 address may be a number.
    """
    given = os.environ if environment is None else environment
    tree = given_tree(config)
    for name, key in ENVIRONMENT.items():
        if given.get(name):
            tree = set_key(tree, key.split("."), given[name])
    return parse_config(tree, source="environment")


def given_tree(config: RunConfig) -> dict[str, Any]:
    """The keys that the configuration was given, without those that it filled in itself."""
    return config.model_dump(mode="json", exclude_unset=True)


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML that `load_config` reads back to an equal value."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return text


def dump_given(config: RunConfig) -> str:
    """The keys that the configuration was given, as YAML that `load_config` reads back to an equal value."""
    text: str = yaml.safe_dump(given_tree(config), sort_keys=False)
    return text


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeys)
    except FileNotFoundError as error:
        raise ConfigError(f"{located(path)}: no such file") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: is a directory; name the YAML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    except DuplicateKey as error:
        raise ConfigError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not valid YAML: {error}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: the top level must be keys and values, got {type(tree).__name__}")
    return tree


def _split(override: str) -> tuple[list[str], Any]:
    key, separator, value = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {override}: write it as key=value, for example learner.steps=5")
    try:
        return key.strip().split("."), yaml.load(value, Loader=UniqueKeys) if value else None
    except DuplicateKey as error:
        raise ConfigError(f"--set {override}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: the value is not valid YAML: {error}") from error


def set_key(tree: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of `tree` with one dotted key set; missing sections are made, and a number finds its place in a
    list (`rewards.0.weight`). Errors: ConfigError for a place that the list does not have."""
    return {**tree, keys[0]: _with(tree.get(keys[0]), keys[1:], value)}


def _with(below: Any, keys: Sequence[str], value: Any) -> Any:
    if not keys:
        return value
    if isinstance(below, list):
        place = int(keys[0]) if keys[0].isdecimal() else len(below)
        if place >= len(below):
            raise ConfigError(f"{keys[0]} is no place in a list of {len(below)}, which counts from 0")
        return [*below[:place], _with(below[place], keys[1:], value), *below[place + 1 :]]
    return set_key(below if isinstance(below, dict) else {}, keys, value)
