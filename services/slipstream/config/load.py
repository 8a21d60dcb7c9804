"""Reads a YAML file, `--set` overrides and environment variables into one frozen RunConfig."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from slipstream.config.explain import explain
from slipstream.config.paths import located
from slipstream.config.problem import Invalid, Problem
from slipstream.config.schema import RunConfig, RunFile, resolve
from slipstream.config.unique_keys import DuplicateKey, UniqueKeys

ENVIRONMENT = {
    "SLIPSTREAM_REPLAY_ADDRESS": "replay.address",
    "SLIPSTREAM_VERIFIER_ADDRESS": "verifier.address",
    "SLIPSTREAM_TEACHER_ADDRESS": "teacher.address",
    "SLIPSTREAM_LEARNER_ADDRESS": "learner.address",
    "SLIPSTREAM_ROLLOUT_ADDRESS": "rollout.address",
    "SLIPSTREAM_ROLLOUT_HOST": "rollout.host",
    "SLIPSTREAM_REDIS_URL": "replay.redis_url",
    "SLIPSTREAM_WEIGHTS_HOST": "weights.host",
    "SLIPSTREAM_METRICS_HOST": "telemetry.host",
    "SLIPSTREAM_METRICS_PORT": "telemetry.port",
    "SLIPSTREAM_RUN_DIR": "run_dir",
}
"""Environment variable → the key that it sets in a pod."""


class ConfigError(ValueError):
    """The configuration is wrong; the message names every key at fault and what to do.

    `problems` has the same faults as fields; it is empty where there was no tree of keys to validate.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


def load_config(files: Path | Sequence[Path], overrides: Iterable[str] = ()) -> RunConfig:
    """Read YAML files, apply `key=value` overrides with dotted keys, and validate the result.

    A later file wins: it adds keys to sections that an earlier file has, and replaces any other value.
    Relative paths in a file are relative to the working directory. Errors: ConfigError.
    """
    paths = [files] if isinstance(files, Path) else list(files)
    tree: dict[str, Any] = {}
    for path in paths:
        tree = laid_over(tree, _read(path))
    return parse_config(tree, overrides, source=", ".join(map(str, paths)))


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two trees of keys: `above` adds keys to the sections of `below`, and replaces other values."""
    merged = dict(below)
    for key, value in above.items():
        replaced = below.get(key)
        sections = isinstance(replaced, dict) and isinstance(value, dict)
        merged[key] = laid_over(replaced, value) if sections else value  # type: ignore[arg-type]
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
        return resolve(RunFile.model_validate(merged))
    except ValidationError as error:
        raise _not_valid(source, explain(error.errors(), merged)) from error
    except Invalid as error:
        problem = Problem(key=error.key, reason=error.reason, remedy=error.remedy)
        raise _not_valid(source, [problem]) from error


def _not_valid(source: str, problems: Sequence[Problem]) -> ConfigError:
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(f"{source}: the configuration is not valid\n{lines}", problems)


def apply_environment(config: RunConfig, environment: Mapping[str, str] | None = None) -> RunConfig:
    """Return the configuration with the keys that environment variables set (see ENVIRONMENT).

    A variable is not parsed as YAML, which reads `[::]` as a list and some IPv6 addresses as numbers.
    `environment`: the variables; None reads those of this process. Errors: ConfigError.
    """
    variables = os.environ if environment is None else environment
    tree = given_tree(config)
    for name, key in ENVIRONMENT.items():
        if variables.get(name):
            tree = set_key(tree, key.split("."), variables[name])
    return parse_config(tree, source="environment")


def given_tree(config: RunConfig) -> dict[str, Any]:
    """Return the keys that the user set, without defaults and without keys that `resolve` filled in."""
    return config.model_dump(mode="json", exclude_unset=True)


def dump_config(config: RunConfig) -> str:
    """Return all keys as YAML; `load_config` reads it back to an equal configuration."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
    return text


def dump_given(config: RunConfig) -> str:
    """Return the keys that the user set as YAML; `load_config` reads it back to an equal configuration."""
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
    except (yaml.YAMLError, ValueError) as error:  # ValueError for a date or a number that cannot be
        raise ConfigError(f"{path}: is not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: its lists and sections are nested too deeply to be read") from error
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
    """Return a copy of `tree` with one dotted key set; `keys` are its parts.

    Missing sections are added. In a list, a part of the key is an index (`rewards.0.weight`).
    Errors: ConfigError for an index that the list does not have.
    """
    return {**tree, keys[0]: _with_value(tree.get(keys[0]), keys[1:], value)}


def _with_value(node: Any, keys: Sequence[str], value: Any) -> Any:
    if not keys:
        return value
    if isinstance(node, list):
        index = int(keys[0]) if keys[0].isdecimal() else len(node)
        if index >= len(node):
            raise ConfigError(f"{keys[0]} is no place in a list of {len(node)}, which counts from 0")
        return [*node[:index], _with_value(node[index], keys[1:], value), *node[index + 1 :]]
    return set_key(node if isinstance(node, dict) else {}, keys, value)
