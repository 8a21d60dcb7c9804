"""The commits of a run: every branch or tag on the hub that the configuration names, resolved once."""

from collections.abc import Mapping
from pathlib import Path

from slipstream.config import RunConfig
from slipstream.config.data import DataConfig, HubData, MixtureData, TaskData, parts
from slipstream.config.hub import HubAccess, is_commit, is_hub_id
from slipstream.config.sections.model import ModelConfig
from slipstream.hub.access import is_offline, library, persistent, token_of

SMALLEST = {"model": "config.json", "dataset": "README.md"}
"""A file that is loaded to learn the commit, which the cache then knows by the revision's name."""
ATTEMPTS = 3
"""For the first question to the hub: without a network the answer comes in two seconds."""


def with_commits(config: RunConfig, known: Mapping[str, str]) -> RunConfig:
    """The configuration with commits for revisions; those of `known` (see `commits`) are kept.

    Errors: HubError.
    """
    model, data = _model(config.model, known), _data(config.data, known)
    if model is config.model and data is config.data:
        return config
    return config.model_copy(update={"model": model, "data": data})


def commits(given: RunConfig, pinned: RunConfig) -> dict[str, str]:
    """The commit of each revision that was given: what a resume of the run keeps to."""
    found = {}
    if is_hub_id(given.model.path) and pinned.model.revision is not None:
        found[_key("model", str(given.model.path), given.model)] = pinned.model.revision
    for before, after in zip(parts(given.data), parts(pinned.data), strict=True):
        if isinstance(before, HubData) and isinstance(after, HubData) and after.revision is not None:
            found[_key("dataset", before.id, before)] = after.revision
    return found


def unpinned(config: RunConfig) -> list[str]:
    """Keys of revisions that are no commit, so that two processes may read two different things."""
    found = [
        part.id for part in parts(config.data) if isinstance(part, HubData) and not is_commit(part.revision)
    ]
    keys = [f"data.revision (of {name})" for name in found]
    if is_hub_id(config.model.path) and not is_commit(config.model.revision):
        keys.append(f"model.revision (of {config.model.path})")
    return keys


def _model(model: ModelConfig, known: Mapping[str, str]) -> ModelConfig:
    if not is_hub_id(model.path):
        return model
    return model.model_copy(update={"revision": _commit("model", str(model.path), model, known)})


def _data(data: DataConfig, known: Mapping[str, str]) -> DataConfig:
    if not any(isinstance(part, HubData) for part in parts(data)):
        return data
    if isinstance(data, MixtureData):
        return data.model_copy(update={"of": tuple(_part(part, known) for part in data.of)})
    return _part(data, known)


def _part(part: TaskData, known: Mapping[str, str]) -> TaskData:
    if not isinstance(part, HubData):
        return part
    return part.model_copy(update={"revision": _commit("dataset", part.id, part, known)})


def _commit(kind: str, name: str, access: HubAccess, known: Mapping[str, str]) -> str:
    if access.revision is not None and is_commit(access.revision):
        return access.revision
    key = _key(kind, name, access)
    if key in known:
        return known[key]
    what = f"{'model.path' if kind == 'model' else 'data set'} {name}"
    return persistent(lambda: _snapshot(kind, name, access), what=what, access=access, attempts=ATTEMPTS).name


def _snapshot(kind: str, name: str, access: HubAccess) -> Path:
    return Path(
        library().snapshot_download(
            name,
            repo_type=kind,
            revision=access.revision,
            cache_dir=access.cache_dir,
            token=token_of(access),
            local_files_only=is_offline(access),
            allow_patterns=[SMALLEST[kind]],
        )
    )


def _key(kind: str, name: str, access: HubAccess) -> str:
    return f"{kind} {name}@{access.revision or 'main'}"
