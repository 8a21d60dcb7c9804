"""The directory of a run: made once, found again by --resume, held by one launcher at a time."""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from slipstream.cli.errors import UsageError
from slipstream.cli.launch.history import read_history
from slipstream.config import ConfigError, RunConfig, load_config
from slipstream.config.load import dump_config, dump_given

LATEST = "latest"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """The learner's rows."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What the run amounts to."""
        return self.path / "summary.json"

    @property
    def plots(self) -> Path:
        """The pictures."""
        return self.path / "plots"

    def stage(self, folder: str) -> "RunDirectory":
        """The directory of one of its stages."""
        return RunDirectory(self.path / "stages" / folder)

    def make_folders(self) -> None:
        """The folders that pods write to."""
        for folder in ("logs", "pods", "plots"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)

    def log(self, pod: str) -> Path:
        """The log of a pod, over all of its lives."""
        return self.path / "logs" / f"{pod}.log"

    def ready_file(self, pod: str) -> Path:
        """Where a pod writes its address."""
        return self.path / "pods" / f"{pod}.json"

    @property
    def last_checkpoint(self) -> int | None:
        """Step of the newest whole checkpoint; a round of a stage that samples first is a step."""
        steps = (self.path / "checkpoints").glob("step_*/state.json")
        rounds = (self.path / "rounds").glob("round_*/config.json")
        return max((int(file.parent.name.partition("_")[2]) for file in (*steps, *rounds)), default=None)

    @property
    def source(self) -> Path:
        """The configuration as it was given, before the cold start."""
        return self.path / "source.yaml"

    def write_config(self, config: RunConfig, *, source: RunConfig) -> None:
        """Keep the configuration that the pods read, and the one that was given."""
        for path, text in ((self.source, dump_given(source)), (self.config, dump_config(config))):
            partial = path.with_suffix(".partial")
            partial.write_text(text, encoding="utf-8")
            partial.rename(path)

    def read_source(self) -> RunConfig | None:
        """The configuration as it was given; None in a directory that has none."""
        return load_config(self.source) if self.source.exists() else None


class RunLock:
    """Keeps every other launcher out of a run directory while it is held; the kernel lets go when we die."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._stream = (directory.path / "launcher.lock").open("ab")

    def __enter__(self) -> Self:
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{self._directory.path}: this run is still going on; stop it first") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def make_run_directory(config: RunConfig) -> RunDirectory:
    """A new directory (run_dir, if that is set) with its folders; runs_dir/latest points at it."""
    path = config.run_dir.absolute() if config.run_dir else _new_path(config)
    if config.run_dir and (path / "config.yaml").exists():
        raise UsageError(f"run_dir: {path} has a run in it already; add --resume, or choose another")
    RunDirectory(path).make_folders()
    _point_latest(config.runs_dir, path)
    return RunDirectory(path)


def find_run_directory(config: RunConfig, given: str) -> RunDirectory:
    """The run to resume: the one that is given, or the newest. Errors: UsageError saying why it cannot be."""
    path = Path(given).resolve() if given else (config.run_dir or config.runs_dir / LATEST).resolve()
    run = RunDirectory(path)
    if not run.config.exists():
        raise UsageError(f"--resume: there is no run in {path}; leave --resume out to start one")
    name = stored_config(run).name
    if name != config.name:
        raise UsageError(f"--resume: {path} is a run of `{name}`, and this configuration is `{config.name}`")
    history = read_history(run.metrics)
    if history.has_finished(config.learner.steps):
        more = "raise learner.steps to go on, or leave --resume out to start anew"
        raise UsageError(f"--resume: {path} has finished its {history.finished} steps; {more}")
    return run


def stored_config(run: RunDirectory) -> RunConfig:
    """The configuration that a run was started with."""
    try:
        return load_config(run.config)
    except ConfigError as error:
        raise UsageError(f"--resume: {error}") from error


def _new_path(config: RunConfig) -> Path:
    """runs_dir/<name>-<time>, with a number after it when that is taken; the directory exists on return."""
    stem = f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    config.runs_dir.mkdir(parents=True, exist_ok=True)
    for count in range(1, 1000):
        path = config.runs_dir.absolute() / (stem if count == 1 else f"{stem}-{count}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise UsageError(f"runs_dir: {config.runs_dir} has too many runs named {stem}")


def _point_latest(runs_dir: Path, path: Path) -> None:
    """One atomic rename, so that a reader always finds a run."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    partial = runs_dir / f".{LATEST}-{os.getpid()}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(os.path.relpath(path, runs_dir.absolute()))
    partial.replace(runs_dir / LATEST)
