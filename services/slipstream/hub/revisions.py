"""The commits of a run: every branch or tag on the hub that the configuration names, resolved once."""

from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from slipstream.config import RunConfig
from slipstream.config.data import DataConfig, HubData, MixtureData, TaskData, parts
from slipstream.config.hub import HubAccess, is_commit, is_hub_id
from slipstream.config.sections.model import ModelConfig
from slipstream.config.stage_runs import StageRun, stage_runs
from slipstream.config.stages import DemonstrationMix, DistillationStage, RejectionSamplingStage, Stage
from slipstream.hub.access import is_offline, library, persistent, token_of

SMALLEST = {"model": "config.json", "dataset": "README.md"}
"""A file that is loaded to learn the commit, which the cache then knows by the revision's name."""
ATTEMPTS = 3
"""For the first question to the hub: without a network the answer comes in two seconds."""


def with_commits(config: RunConfig, known: Mapping[str, str]) -> RunConfig:
    """The configuration with commits for revisions, those of its stages too; `known` ones (see `commits`)
    are kept, and each revision is asked for once. Errors: HubError; ConfigError of a stage.
    """
    known = dict(known)
    model, data = _model(config.model, known), _data(config.data, known)
    stages = tuple(_stage(stage_run, known) for stage_run in stage_runs(config))
    changed: dict[str, object] = {}
    if model is not config.model:
        changed["model"] = model
    if data is not config.data:
        changed["data"] = data
    if stages != config.stages:
        changed["stages"] = stages
    return config.model_copy(update=changed) if changed else config


def hub_data(config: RunConfig) -> Iterator[HubData]:
    """The data sets of the hub that a run or one of its stages reads."""
    own = [stage_run.config.data for stage_run in stage_runs(config) if _sets_data(stage_run.stage)]
    for data in (config.data, *own, *_mixed_data(config)):
        yield from (part for part in parts(data) if isinstance(part, HubData))


def commits(given: RunConfig, pinned: RunConfig) -> dict[str, str]:
    """The commit of each revision that was given: what a resume of the run keeps to."""
    found = {}
    if is_hub_id(given.model.path) and pinned.model.revision is not None:
        found[_key("model", str(given.model.path), given.model)] = pinned.model.revision
    for before, after in zip(hub_data(given), hub_data(pinned), strict=True):
        if after.revision is not None:
            found[_key("dataset", before.id, before)] = after.revision
    return found


def unpinned(config: RunConfig) -> list[str]:
    """Keys of revisions that are no commit, so that two processes may read two different things."""
    keys = [f"data.revision (of {name})" for name in _moving(config.data)]
    for data in _mixed_data(config):
        keys += [f"mix.data.revision (of {name})" for name in _moving(data)]
    if is_hub_id(config.model.path) and not is_commit(config.model.revision):
        keys.append(f"model.revision (of {config.model.path})")
    return keys


def _moving(data: DataConfig) -> list[str]:
    """The data sets whose revision is no commit."""
    return [part.id for part in parts(data) if isinstance(part, HubData) and not is_commit(part.revision)]


def _mix(stage: Stage) -> DemonstrationMix | None:
    return stage.mix if isinstance(stage, RejectionSamplingStage | DistillationStage) else None


def _mixed_data(config: RunConfig) -> list[DataConfig]:
    """The data of the demonstrations that stages mix in."""
    return [mix.data for stage in config.stages if (mix := _mix(stage)) is not None]


def _model(model: ModelConfig, known: MutableMapping[str, str]) -> ModelConfig:
    if not is_hub_id(model.path):
        return model
    return model.model_copy(update={"revision": _commit("model", str(model.path), model, known)})


def _sets_data(stage: Stage) -> bool:
    return any(_is_of_data(key) for key in stage.set)


def _is_of_data(key: str) -> bool:
    return key == "data" or key.startswith("data.")


def _stage(stage_run: StageRun, known: MutableMapping[str, str]) -> Stage:
    """The stage with commits in the data that it sets, and in that of its demonstrations."""
    stage, given = _with_mix(stage_run.stage, known), stage_run.config.data
    data = _data(given, known) if _sets_data(stage) else given
    if data is given:
        return stage
    others = {key: value for key, value in stage.set.items() if not _is_of_data(key)}
    own = {**others, "data": data.model_dump(mode="json", exclude_unset=True)}
    return stage.model_copy(update={"set": own})


def _with_mix(stage: Stage, known: MutableMapping[str, str]) -> Stage:
    mix = _mix(stage)
    data = None if mix is None else _data(mix.data, known)
    if mix is None or data is mix.data:
        return stage
    return stage.model_copy(update={"mix": mix.model_copy(update={"data": data})})


def _data(data: DataConfig, known: MutableMapping[str, str]) -> DataConfig:
    if not any(isinstance(part, HubData) for part in parts(data)):
        return data
    if isinstance(data, MixtureData):
        return data.model_copy(update={"of": tuple(_part(part, known) for part in data.of)})
    return _part(data, known)


def _part(part: TaskData, known: MutableMapping[str, str]) -> TaskData:
    if not isinstance(part, HubData):
        return part
    return part.model_copy(update={"revision": _commit("dataset", part.id, part, known)})


def _commit(kind: str, name: str, access: HubAccess, known: MutableMapping[str, str]) -> str:
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
