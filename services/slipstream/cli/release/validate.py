"""`slipstream validate RUN --values VALUES`: the checks that are possible before the pods of a release start.

    values, --set, --set-file ─▶ values of the release ─┐
    run's YAML ─────────────────────────────────────────┴─▶ what the pods read ─▶ checks

Files that only the cluster has are not looked for. The learner's pod runs the same command with its mounts.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.cli import axes, errors, validate
from slipstream.cli.checks import context, memory, rewards, verifier
from slipstream.cli.checks.model import ModelFiles, read_model
from slipstream.cli.release import agreement, overlay
from slipstream.cli.release.release import LocalFiles, Release, make_release
from slipstream.cli.release.values import NO_SCHEMA, read_values, schema_is_checked
from slipstream.config.checks import Problem, check_config, derived_numbers
from slipstream.config.paths import located
from slipstream.config.rewards import CustomConfig
from slipstream.prompts import make_source

OF_THE_RUN = ("completions in flight",)
"""Rows of the table that count the rollouts and actors of `slipstream run`."""
OF_LOCAL_PODS = ("actor.max_groups",)
"""Keys that `check_config` compares with the pods of `slipstream run`; `disagreements` compares them with
the values."""
OF_THIS_MACHINE = ("rollout.gpu_memory_utilization", "rollout.kv_cache_gib")
"""Keys of the engine that another check compares with the GPUs of this machine."""
UNSEEN = ModelFiles(config={}, tokenizer=None, problems=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRequest:
    """The arguments of the command."""

    run: Path | None
    values: Sequence[Path]
    sets: Sequence[str] = ()
    set_files: Sequence[str] = ()
    local_files: LocalFiles


def validate_release(request: ValidationRequest) -> int:
    """Print the derived numbers, the algorithm and the notes. Errors: UsageError with every problem."""
    values = read_values(request.values, request.sets, request.set_files)
    source = str(request.run or "run.config")
    release = make_release(
        _run_text(request.run, values["run"]["config"]), source, values, request.local_files
    )
    problems = release_problems(release)
    with_values = f"{source} with {', '.join(map(str, request.values))}"
    validate.require_no_error(problems, with_values)
    print(f"{with_values} is valid")
    for name, text in _rows(release):
        print(f"  {name:<34} {text}")
    for note in [*map(str, problems), *_not_looked_at(release)]:
        print(f"  note: {note}")
    return 0


def release_problems(release: Release) -> list[Problem]:
    """Return the problems of the run, of its files on this machine, and between the run and the values."""
    config, model = release.config, _model(release)
    problems = [
        *(problem for problem in check_config(config) if problem.key not in OF_LOCAL_PODS),
        *(validate.model_problems(config, model) if release.sees_models else ()),
        *(validate.prompt_problems(config, model) if release.sees_data else ()),
        *_engine(release, model),
        *_rewards(release),
        *_verifier(release),
        *(memory.check_staging(config) if release.sees_models else ()),
        *agreement.disagreements(release),
    ]
    return list(dict.fromkeys(problems))


def _model(release: Release) -> ModelFiles | None:
    return read_model(release.config) if release.sees_models else UNSEEN


def _engine(release: Release, model: ModelFiles | None) -> Iterator[Problem]:
    """The context of the engine. Its cache depends on the GPUs of the cluster, so it is not checked."""
    for problem in context.check_context(release.config, model, gpus="note", measures=False):
        if problem.key not in OF_THIS_MACHINE:
            yield problem


def _rewards(release: Release) -> Iterator[Problem]:
    """The reward functions in `verifier.code`. Functions of the image are not on this machine."""
    code = release.values["verifier"]["code"]
    names = [getattr(reward, "function", None) for reward in release.config.rewards]
    tried = [
        position
        for position, name in enumerate(names)
        if isinstance(release.config.rewards[position], CustomConfig)
        and f"{str(name).partition(':')[0].partition('.')[0]}.py" in code
    ]
    if not tried:
        return
    with tempfile.TemporaryDirectory(prefix="slipstream-code-") as folder:
        for name, text in code.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        for problem in rewards.check_rewards(release.config, folder=Path(folder), prompts=release.sees_data):
            place_of = problem.key.split(".")
            if len(place_of) == 1 or int(place_of[1]) in tried:
                yield problem


def _verifier(release: Release) -> Iterator[Problem]:
    """Rewards that the verifier refuses, except for packages that only this machine lacks."""
    for problem in verifier.check_verifier(release.config, if_missing="note", prompts=release.sees_data):
        if problem.remedy != verifier.REMEDIES["note"]:
            yield problem


def _rows(release: Release) -> Iterator[tuple[str, str]]:
    config, model = release.config, _model(release)
    held_out = make_source(config.data, seed=config.seed).held_out_size if release.sees_data else None
    numbers = validate.number_lines(derived_numbers(config, held_out_size=held_out))
    yield from (row for row in numbers if row[0] not in OF_THE_RUN)
    yield "learner ranks", f"{overlay.learner_ranks(release.values)}"
    if release.sees_models:
        rows = context.context_lines(config, model, measures=False)
        yield from (row for row in rows if row[0] != "key-value cache")
        yield from memory.memory_lines(config)
    yield from axes.axis_rows(config)


def _not_looked_at(release: Release) -> Iterator[str]:
    if not schema_is_checked():
        yield NO_SCHEMA
    if not release.sees_models:
        where = f"model.path: {release.mounted.model.path} is in the cluster"
        yield f"{where} and was not looked at; `--models DIR` names a copy of /models here"
    if not release.sees_data:
        mount = release.values["data"]["mountPath"]
        where = "data: replay reads it in the cluster"
        yield f"{where}, and it was not looked at; `--data DIR` names a copy of {mount} here"


def _run_text(run: Path | None, in_values: str) -> str:
    if run is None:
        if not in_values.strip():
            raise errors.UsageError(
                "no run: name its YAML file, as in `slipstream validate my.yaml --values first.yaml`"
            )
        return in_values
    try:
        return run.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.UsageError(f"{located(run)}: cannot be read: {error}") from error
