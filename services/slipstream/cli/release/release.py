"""A run in a Helm release: the configuration that pods read, and which of its files are on this machine."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from slipstream.cli.errors import UsageError
from slipstream.cli.release.overlay import Names, cluster_tree
from slipstream.config import RunConfig, load, located
from slipstream.config.data import FileData, HubData, ReasoningGymData, parts
from slipstream.config.unique_keys import DuplicateKey, UniqueKeys

MODELS = PurePosixPath("/models")
POLICY_KEYS = (("model", "path"), ("algorithm", "reference", "path"), ("learner", "critic", "path"))
"""Directories of models that the learner reads from its mount."""

Move = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles:
    """Folders of this machine with the contents of mounts; None if only the cluster has them."""

    models: Path | None = None
    """The contents of /models in the learner's pod."""
    data: Path | None = None
    """The contents of `data.mountPath` in replay's pod."""
    installed: bool = False
    """Whether this is a pod of the release: helm has checked the values, and the pod has some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A run with the values that it is installed with."""

    values: Mapping[str, Any]
    run: Mapping[str, Any]
    """The run's YAML, without defaults and without the keys that the chart sets."""
    mounted: RunConfig
    """The configuration of the pods, with paths of the cluster."""
    config: RunConfig
    """The same configuration, with paths of this machine for files in the local folders."""
    local_files: LocalFiles

    @property
    def sees_models(self) -> bool:
        """Whether this machine has the model, or the configuration describes a tiny one."""
        return self.config.model.tiny is not None or self.local_files.models is not None

    @property
    def sees_data(self) -> bool:
        """Whether this machine has the prompts. Only replay can read data of the hub."""
        return all(self._sees(part) for part in parts(self.mounted.data))

    def _sees(self, part: object) -> bool:
        if isinstance(part, FileData):
            mount = self.values["data"]["mountPath"]
            return self.local_files.data is not None and all(below(path, mount) for path in _files(part))
        if isinstance(part, ReasoningGymData):
            return find_spec("reasoning_gym") is not None
        return not isinstance(part, HubData)


def make_release(run: str, source: str, values: Mapping[str, Any], local_files: LocalFiles) -> Release:
    """Return the release of a run's YAML text. Errors: UsageError, ConfigError."""
    own = _parsed(run, source)
    if own.get("stages"):
        raise UsageError(
            f"{source}: has `stages`, which need one machine after the other; run them with "
            "`slipstream run`, or install one release for each stage"
        )
    tree = load.laid_over(own, cluster_tree(values, own, Names()))
    return Release(
        values=values,
        run=own,
        mounted=load.parse_config(tree, source=source),
        config=load.parse_config(_moved(tree, values, local_files), source=source),
        local_files=local_files,
    )


def below(path: Path | PurePosixPath | str, mount: str | PurePosixPath) -> bool:
    """Return whether a path of a pod is a mount or inside one."""
    return PurePosixPath(path).is_relative_to(mount)


def _parsed(run: str, source: str) -> dict[str, Any]:
    try:
        tree = yaml.load(run, Loader=UniqueKeys)
    except DuplicateKey as error:
        raise UsageError(f"{source}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: is not valid YAML: {error}") from error
    if not isinstance(tree, dict):
        raise UsageError(f"{source}: the top level must be keys and values, got {type(tree).__name__}")
    return tree


def _files(part: FileData) -> Iterator[Path]:
    yield part.path
    if part.held_out_path is not None:
        yield part.held_out_path


def _moved(tree: dict[str, Any], values: Mapping[str, Any], local_files: LocalFiles) -> dict[str, Any]:
    """Return the tree with the paths of this machine."""
    to_models = _mover(str(MODELS), local_files.models)
    for keys in POLICY_KEYS:
        tree = _replaced(tree, keys, to_models)
    to_data = _mover(values["data"]["mountPath"], local_files.data)
    return {**tree, "data": _with_files(tree["data"], to_data)} if "data" in tree else tree


def _mover(mount: str, folder: Path | None) -> Move:
    if folder is not None and not folder.is_dir():
        raise UsageError(
            f"{located(folder)} is not a directory; name the one whose copy the cluster mounts at {mount}"
        )
    return lambda path: (
        str(folder / PurePosixPath(path).relative_to(mount)) if folder and below(path, mount) else path
    )


def _replaced(tree: dict[str, Any], keys: tuple[str, ...], move: Move) -> dict[str, Any]:
    value = tree.get(keys[0])
    if len(keys) == 1:
        return {**tree, keys[0]: move(value)} if isinstance(value, str) else tree
    return {**tree, keys[0]: _replaced(value, keys[1:], move)} if isinstance(value, dict) else tree


def _with_files(data: Any, move: Move) -> Any:
    if not isinstance(data, dict):
        return data
    if isinstance(data.get("of"), list):
        return {**data, "of": [_with_files(part, move) for part in data["of"]]}
    return {
        key: move(value) if key in ("path", "held_out_path") and isinstance(value, str) else value
        for key, value in data.items()
    }
