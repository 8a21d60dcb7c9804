"""The commits of a run: each hub revision (branch or tag) of the configuration is resolved once."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from slipstream.config import ModelConfig, RunConfig
from slipstream.config.data import DataConfig, HubData, MixtureData, TaskData, parts
from slipstream.config.hub import HubAccess, is_commit, is_hub_id
from slipstream.config.stage_runs import StageRun, stage_runs
from slipstream.config.stages import DemonstrationMix, DistillationStage, RejectionSamplingStage, Stage
from slipstream.hub.access import is_offline, library, token_of, with_retries

SMALLEST = {"model": "config.json", "dataset": "README.md"}
"""The file that is loaded to learn the commit; the cache then maps the name of the revision to it."""
ATTEMPTS = 3
"""Attempts of the first call to the hub; without a network they fail within two seconds."""


def with_commits(config: RunConfig, pinned: Mapping[str, str]) -> RunConfig:
    """Return the configuration with commits instead of revisions, in its stages too.

    `pinned` are the commits of an earlier start of the run (see `commits`). Each other revision is resolved
    once. Errors: HubError; ConfigError of a stage.
    """
    pinned = dict(pinned)
    model, data = _model(config.model, pinned), _data(config.data, pinned)
    stages = tuple(_stage(stage_run, pinned) for stage_run in stage_runs(config))
    changed: dict[str, object] = {}
    if model is not config.model:
        changed["model"] = model
    if data is not config.data:
        changed["data"] = data
    if stages != config.stages:
        changed["stages"] = stages
    return config.model_copy(update=changed) if changed else config


def hub_data(config: RunConfig) -> Iterator[HubData]:
    """Yield the data sets of the hub that a run or one of its stages reads."""
    own = [stage_run.config.data for stage_run in stage_runs(config) if _sets_data(stage_run.stage)]
    for data in (config.data, *own, *_mixed_data(config.stages)):
        yield from (part for part in parts(data) if isinstance(part, HubData))


def commits(config: RunConfig, pinned: RunConfig) -> dict[str, str]:
    """Return the commit of each revision of `config`, from its copy with commits; a resume reuses them."""
    by_revision = {}
    if is_hub_id(config.model.path) and pinned.model.revision is not None:
        by_revision[_key("model", str(config.model.path), config.model)] = pinned.model.revision
    for before, after in zip(hub_data(config), hub_data(pinned), strict=True):
        if after.revision is not None:
            by_revision[_key("dataset", before.id, before)] = after.revision
    return by_revision


def unpinned(config: RunConfig) -> list[str]:
    """Return the keys of revisions that are no commit; two processes could read different files for them."""
    keys = [f"data.revision (of {name})" for name in _moving(config.data)]
    for data in _mixed_data(config.stages):
        keys += [f"mix.data.revision (of {name})" for name in _moving(data)]
    if is_hub_id(config.model.path) and not is_commit(config.model.revision):
        keys.append(f"model.revision (of {config.model.path})")
    return keys


def _moving(data: DataConfig) -> list[str]:
    """Return the ids of data sets whose revision is no commit."""
    return [part.id for part in parts(data) if isinstance(part, HubData) and not is_commit(part.revision)]


def _mix(stage: Stage) -> DemonstrationMix | None:
    return stage.mix if isinstance(stage, RejectionSamplingStage | DistillationStage) else None


def _mixed_data(stages: Sequence[Stage]) -> list[DataConfig]:
    """Return the data of the demonstrations that stages mix in."""
    return [mix.data for stage in stages if (mix := _mix(stage)) is not None]


def _model(model: ModelConfig, pinned: MutableMapping[str, str]) -> ModelConfig:
    if not is_hub_id(model.path):
        return model
    return model.model_copy(update={"revision": _commit("model", str(model.path), model, pinned)})


def _sets_data(stage: Stage) -> bool:
    return any(_is_of_data(key) for key in stage.set)


def _is_of_data(key: str) -> bool:
    return key == "data" or key.startswith("data.")


def _stage(stage_run: StageRun, pinned: MutableMapping[str, str]) -> Stage:
    """Return the stage with commits in the data that it sets, and in the data of its demonstrations."""
    stage, stage_data = _with_mix(stage_run.stage, pinned), stage_run.config.data
    data = _data(stage_data, pinned) if _sets_data(stage) else stage_data
    if data is stage_data:
        return stage
    others = {key: value for key, value in stage.set.items() if not _is_of_data(key)}
    own = {**others, "data": data.model_dump(mode="json", exclude_unset=True)}
    return stage.model_copy(update={"set": own})


def _with_mix(stage: Stage, pinned: MutableMapping[str, str]) -> Stage:
    mix = _mix(stage)
    data = None if mix is None else _data(mix.data, pinned)
    if mix is None or data is mix.data:
        return stage
    return stage.model_copy(update={"mix": mix.model_copy(update={"data": data})})


def _data(data: DataConfig, pinned: MutableMapping[str, str]) -> DataConfig:
    if not any(isinstance(part, HubData) for part in parts(data)):
        return data
    if isinstance(data, MixtureData):
        return data.model_copy(update={"of": tuple(_part(part, pinned) for part in data.of)})
    return _part(data, pinned)


def _part(part: TaskData, pinned: MutableMapping[str, str]) -> TaskData:
    if not isinstance(part, HubData):
        return part
    return part.model_copy(update={"revision": _commit("dataset", part.id, part, pinned)})


def _commit(kind: str, name: str, access: HubAccess, pinned: MutableMapping[str, str]) -> str:
    if access.revision is not None and is_commit(access.revision):
        return access.revision
    key = _key(kind, name, access)
    if key in pinned:
        return pinned[key]
    what = f"{'model.path' if kind == 'model' else 'data set'} {name}"
    snapshot = with_retries(
        lambda: _snapshot(kind, name, access), what=what, access=access, attempts=ATTEMPTS
    )
    pinned[key] = snapshot.name
    return snapshot.name


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
