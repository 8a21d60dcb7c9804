"""The directory of a run: created once, found by --resume, and locked by one launcher at a time.

`Writing` is the checkpoint or model that the learner is writing into it.
"""

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from slipstream.cli.errors import UsageError
from slipstream.cli.launch.history import read_history
from slipstream.config import ConfigError, RunConfig, load, load_config

LATEST = "latest"
LOCK = "launcher.lock"
LOCKS = Path("/proc/locks")
PARTIAL = ".partial-"
MEGABYTE, GIGABYTE = 10**6, 10**9


@dataclass(frozen=True, slots=True)
class Writing:
    """A checkpoint or model that the learner is writing, with its progress from the sizes of its files."""

    what: str
    """Name of the complete folder."""
    written: int
    """Bytes of weights that are written."""
    total: int | None
    """Bytes of weights of the complete folder; None if state.json does not have them."""

    def __str__(self) -> str:
        size = self.written if self.total is None else max(self.written, self.total)
        unit, name, digits = (GIGABYTE, "GB", 1) if size >= GIGABYTE else (MEGABYTE, "MB", 0)
        of = "" if self.total is None else f" of {size / unit:.{digits}f}"
        return f"writing {self.written / unit:.{digits}f}{of} {name} ({self.what})"


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
        """The summary of the run."""
        return self.path / "summary.json"

    @property
    def samples(self) -> Path:
        """One completion of each step."""
        return self.path / "samples.jsonl"

    @property
    def plots(self) -> Path:
        """The pictures."""
        return self.path / "plots"

    def stage(self, folder: str) -> "RunDirectory":
        """Return the directory of a stage."""
        return RunDirectory(self.path / "stages" / folder)

    def make_folders(self) -> None:
        """Create the folders that pods write to."""
        for folder in ("logs", "pods", "plots"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)

    def log(self, pod: str) -> Path:
        """Return the log of a pod, which its restarts append to."""
        return self.path / "logs" / f"{pod}.log"

    def ready_file(self, pod: str) -> Path:
        """Return the file that a pod writes its address to."""
        return self.path / "pods" / f"{pod}.json"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.path / "checkpoints" / f"step_{step:08d}"

    @property
    def last_checkpoint(self) -> int | None:
        """Step of the newest complete checkpoint; a round of a stage that samples first counts as a step."""
        steps = (self.path / "checkpoints").glob("step_*/state.json")
        rounds = (self.path / "rounds").glob("round_*/config.json")
        return max((int(file.parent.name.partition("_")[2]) for file in (*steps, *rounds)), default=None)

    @property
    def writing(self) -> Writing | None:
        """The folder that the learner is writing; None if there is none.

        The learner writes into a folder `.partial-NAME`, and renames it when it is complete. The state.json
        of a checkpoint is written first, and has the size of the checkpoint.
        """
        for parent in (self.path / "checkpoints", self.path / "rounds", self.path):
            for folder in sorted(parent.glob(f"{PARTIAL}*")):
                return Writing(folder.name.removeprefix(PARTIAL), _bytes_below(folder), _total(folder))
        return None

    @property
    def source(self) -> Path:
        """The configuration as the user wrote it, before the cold start."""
        return self.path / "source.yaml"

    def write_config(self, config: RunConfig, *, source: RunConfig) -> None:
        """Write the configuration that the pods read, and the one that the user wrote."""
        for path, text in ((self.source, load.dump_given(source)), (self.config, load.dump_config(config))):
            partial = path.with_suffix(".partial")
            partial.write_text(text, encoding="utf-8")
            partial.rename(path)

    def read_source(self) -> RunConfig | None:
        """Return the configuration as the user wrote it; None if the directory has none."""
        return load_config(self.source) if self.source.exists() else None


class RunLock:
    """A lock that allows one launcher in a run directory; the kernel releases it when the process ends."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._stream = (directory.path / LOCK).open("ab")

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


def is_running(directory: RunDirectory) -> bool:
    """Return whether a launcher holds the lock of the directory.

    Linux has a table of all locks. Elsewhere the lock is tried, and taken for an instant, in which a launcher
    that starts would fail.
    """
    try:
        with (directory.path / LOCK).open("rb") as stream:
            if LOCKS.exists():
                return _is_listed(os.fstat(stream.fileno()).st_ino)
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _is_listed(inode: int) -> bool:
    """Return whether a process holds the lock of a file, by the table of the kernel."""
    rows = (line.split() for line in LOCKS.read_text(encoding="ascii").splitlines())
    return any("FLOCK" in row and any(cell.endswith(f":{inode}") for cell in row) for row in rows)


def make_run_directory(config: RunConfig) -> RunDirectory:
    """Create a directory (run_dir, if it is set) with its folders, and link runs_dir/latest to it.

    Errors: UsageError if run_dir has a run.
    """
    path = config.run_dir.absolute() if config.run_dir else _new_path(config)
    if config.run_dir and (path / "config.yaml").exists():
        raise UsageError(f"run_dir: {path} has a run in it already; add --resume, or choose another")
    RunDirectory(path).make_folders()
    _point_latest(config.runs_dir, path)
    return RunDirectory(path)


def find_run_directory(config: RunConfig, name: str) -> RunDirectory:
    """Return the run to resume: the directory `name`, or the newest run for "".

    Errors: UsageError if there is no such run, or it cannot be resumed.
    """
    path = Path(name).resolve() if name else (config.run_dir or config.runs_dir / LATEST).resolve()
    run = RunDirectory(path)
    if not run.config.exists():
        raise UsageError(f"--resume: there is no run in {path}; leave --resume out to start one")
    run_name = stored_config(run).name
    if run_name != config.name:
        raise UsageError(
            f"--resume: {path} is a run of `{run_name}`, and this configuration is `{config.name}`"
        )
    history = read_history(run.metrics)
    if history.has_finished(config.learner.steps):
        more = "raise learner.steps to go on, or leave --resume out to start anew"
        raise UsageError(f"--resume: {path} has finished its {history.finished} steps; {more}")
    return run


def stored_config(run: RunDirectory) -> RunConfig:
    """Return the configuration that a run was started with. Errors: UsageError."""
    try:
        return load_config(run.config)
    except ConfigError as error:
        raise UsageError(f"--resume: {error}") from error


def _new_path(config: RunConfig) -> Path:
    """Create and return runs_dir/<name>-<time>, with a number after it if that exists."""
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
    """Link runs_dir/latest to the run by one rename, so that a reader always finds a run."""
    runs_dir.mkdir(parents=True, exist_ok=True)
    partial = runs_dir / f".{LATEST}-{os.getpid()}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(os.path.relpath(path, runs_dir.absolute()))
    partial.replace(runs_dir / LATEST)


def _bytes_below(folder: Path) -> int:
    """Return the size of the weights; other files are small, and not part of the total."""
    total = 0
    for path in folder.rglob("*.safetensors"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # the folder has just been renamed
    return total


def _total(folder: Path) -> int | None:
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    size = state.get("bytes") if isinstance(state, dict) else None
    return size if isinstance(size, int) else None
