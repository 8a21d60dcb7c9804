"""A run as its directory shows it, to other commands than `slipstream run`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.cli.errors import UsageError
from slipstream.cli.launch.history import History, read_history
from slipstream.cli.launch.pods import REPLAY
from slipstream.cli.launch.run_directory import RunDirectory, is_running
from slipstream.config import ConfigError, RunConfig, load_config


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run, or the newest stage of a run with stages."""

    directory: RunDirectory
    config: RunConfig
    history: History
    running: bool

    @property
    def state(self) -> str:
        """running, finished or stopped."""
        if self.running:
            return "running"
        return "finished" if self.history.has_finished(self.config.learner.steps) else "stopped"

    @property
    def replay_address(self) -> str | None:
        """The address of replay, which answers only while the run is running."""
        address = _json(self.directory.ready_file(REPLAY)).get("address")
        return address if isinstance(address, str) and address else None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json; empty before the end of the run."""
        return _json(self.directory.summary)


def open_run(path: Path) -> StoredRun:
    """Return the run of a directory. Errors: UsageError if it is not that of a run, or cannot be read."""
    history, directory = open_history(path), with_rows(path)
    if not directory.config.is_file():
        raise UsageError(f"{path} is not the directory of a run: it has no config.yaml")
    try:
        config = load_config(directory.config)
    except (ConfigError, UnicodeError, OSError) as error:
        raise UsageError(
            f"{path}: this version of Slipstream cannot read its config.yaml: {error}"
        ) from error
    return StoredRun(
        directory=directory, config=config, history=history, running=is_running(RunDirectory(path))
    )


def open_history(path: Path) -> History:
    """Return the rows of a run, or of its newest stage. Errors: UsageError."""
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such directory; name the directory of a run")
    metrics = with_rows(path).metrics
    try:
        history = read_history(metrics)
        size = metrics.stat().st_size if metrics.exists() else 0
    except OSError as error:
        raise UsageError(f"{path}: its metrics.jsonl cannot be read: {error.strerror}") from error
    if size and not history.rows:
        raise UsageError(f"{path}: its metrics.jsonl has no row of a learner; is it of another program?")
    return history


def with_rows(path: Path) -> RunDirectory:
    """Return the directory with the rows of a run: its own, or that of its newest stage."""
    run = RunDirectory(path)
    stages = sorted((path / "stages").glob("*/config.yaml")) if not run.metrics.exists() else []
    return RunDirectory(stages[-1].parent) if stages else run


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty if the file does not exist. Errors: UsageError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a file of Slipstream: it has no JSON object")
    return content
