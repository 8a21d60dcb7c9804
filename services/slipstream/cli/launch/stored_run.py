"""A run as its directory shows it, to other commands than `slipstream run`."""

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.cli.errors import UsageError
from slipstream.cli.launch.history import History, read_history
from slipstream.cli.launch.ledger import read_stats
from slipstream.cli.launch.pods import REPLAY
from slipstream.cli.launch.run_directory import RunDirectory, is_running
from slipstream.cli.launch.stages import DONE
from slipstream.config import ConfigError, RunConfig, load_config
from slipstream.records import Ledger, ReplayStats

COUNTERS = {field.name for field in dataclasses.fields(Ledger)}


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
        done = (self.directory.path / DONE).exists()
        return "finished" if done or self.history.has_finished(self.config.learner.steps) else "stopped"

    @property
    def replay_address(self) -> str | None:
        """The address of replay, which answers only while the run is running."""
        address = _json(self.directory.ready_file(REPLAY)).get("address")
        return address if isinstance(address, str) and address else None

    def read_replay(self) -> ReplayStats | None:
        """Return the state of replay; None if the run is not running, or replay does not answer."""
        if not self.running or self.replay_address is None:
            return None
        return asyncio.run(read_stats(self.replay_address, self.config.rpc))

    @property
    def stored_step(self) -> int | None:
        """The step of summary.json. Errors: UsageError."""
        step = _json(self.directory.summary).get("steps")
        return step if isinstance(step, int) else None

    @property
    def stored_ledger(self) -> Ledger | None:
        """The ledger at the end of the run, from summary.json. Errors: UsageError."""
        return stored_ledger(self.directory.summary)

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of replay while the run is running, and that of summary.json afterwards."""
        if self.history.replay is not None:
            return self.history.replay.ledger
        return None if self.running else self.stored_ledger


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


def stored_ledger(summary: Path) -> Ledger | None:
    """Return the ledger in a summary.json; None if it has none. Errors: UsageError."""
    stored = _json(summary).get("ledger")
    if not isinstance(stored, Mapping):
        return None
    try:
        counters: dict[str, Any] = {
            name: _counter(name, value) for name, value in stored.items() if name in COUNTERS
        }
    except TypeError as error:
        raise UsageError(f"{summary}: its ledger cannot be read: {error}") from error
    return Ledger(**counters)


def with_rows(path: Path) -> RunDirectory:
    """Return the directory with the rows of a run: its own, or that of its newest stage."""
    run = RunDirectory(path)
    stages = sorted((path / "stages").glob("*/config.yaml")) if not run.metrics.exists() else []
    return RunDirectory(stages[-1].parent) if stages else run


def _counter(name: str, value: Any) -> int | dict[str, int]:
    """Return a counter of the ledger, or its numbers by reason. Errors: TypeError."""
    by_reason = isinstance(getattr(Ledger(), name), Mapping)
    numbers = value.values() if isinstance(value, dict) else [value]
    if by_reason != isinstance(value, dict) or not all(isinstance(number, int) for number in numbers):
        raise TypeError(f"{name} is {value!r}, needs {'numbers by reason' if by_reason else 'a number'}")
    return dict(value) if by_reason else int(value)


def _json(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty if the file does not exist. Errors: UsageError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a file of Slipstream: it has no JSON object")
    return content
