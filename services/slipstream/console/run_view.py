"""What the console knows of one run directory."""

import asyncio
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from slipstream.cli.errors import CommandError, UsageError
from slipstream.cli.launch.alarms import Alarm, find_alarms
from slipstream.cli.launch.history import History, number
from slipstream.cli.launch.run_directory import LOCK, RunDirectory, is_running
from slipstream.cli.launch.running import find_running
from slipstream.cli.launch.stages import DONE as STAGE_DONE
from slipstream.cli.launch.stored_run import stored_ledger, with_rows
from slipstream.config import ConfigError, RpcConfig, RunConfig, load_config
from slipstream.console.catalogue import CONFIG, METRICS, STAGES
from slipstream.console.live import LiveState
from slipstream.console.metric_rows import MetricRows
from slipstream.records import Ledger, ReplayStats, finite
from slipstream.samples.reader import SampleReader
from slipstream.samples.timeline.reader import TimelineReader

Json = dict[str, Any]
QUIET_SECONDS: Final = 600.0
"""A run without a launcher on this machine counts as stopped after so long without a row."""
SHOWN_KEYS: Final = (
    "step",
    "version",
    "reward_mean",
    "staleness_mean",
    "staleness_max",
    "clip_fraction_low",
    "clip_fraction_high",
    "over_age_fraction",
    "tokens_per_second",
    "idle_fraction",
    "token_entropy",
    "kl_rollout",
    "gradient_norm",
    "learning_rate",
    "workers",
)


class RunView:
    """One run. Its parts are read when they are first asked for, and may be missing.

    A run with stages has the rows and the configuration of its newest stage. `pod`: in a release, the
    configuration of the console's own pod, with the addresses of the run's services.
    """

    def __init__(self, name: str, path: Path, pod: RunConfig | None = None) -> None:
        self.name = name
        self.path = path
        self.pod = pod
        self._identity = _identity(path)
        self._rows = MetricRows(path / METRICS)
        self._read: tuple[os.stat_result | None, RunConfig | None] = (None, None)
        self._samples: dict[Path, SampleReader] = {}
        self._timelines: dict[Path, TimelineReader] = {}
        self._live: LiveState | None = None
        self._asking = asyncio.Lock()

    @property
    def is_replaced(self) -> bool:
        """Whether the directory is another one than when the view was made."""
        try:
            return _identity(self.path) != self._identity
        except OSError:
            return True

    @property
    def config(self) -> RunConfig | None:
        """The configuration; that of the pod if there is no file, None if this release cannot read it."""
        file = with_rows(self.path).config
        try:
            changed = file.stat()
            if self._read[0] is None or changed.st_mtime_ns != self._read[0].st_mtime_ns:
                self._read = (changed, None)
                self._read = (changed, load_config([file], []))
        except FileNotFoundError:
            return self.pod
        except (ConfigError, OSError, ValueError):
            return None
        return self._read[1]

    @property
    def history(self) -> History:
        """The rows of the run so far. Errors: OSError."""
        file = with_rows(self.path).metrics
        if file != self._rows.path:
            self._rows = MetricRows(file)
        return self._rows.refresh()

    @property
    def keys(self) -> list[str]:
        """The keys that a chart can show."""
        return self._rows.numeric_keys()

    @property
    def rows_dir(self) -> Path:
        """The directory with the rows and the completions: its own, or that of the newest stage."""
        return with_rows(self.path).path

    @property
    def samples(self) -> SampleReader:
        """The stored completions. Errors: NoSamples."""
        folder = self.rows_dir
        if folder not in self._samples:
            self._samples[folder] = SampleReader(folder)
        return self._samples[folder]

    @property
    def timeline(self) -> TimelineReader:
        """The spans of the processes; none for a run of an older release."""
        folder = self.rows_dir
        return self._timelines.setdefault(folder, TimelineReader(folder))

    async def live(self) -> Json | None:
        """Return what replay says of the run; None if it has ended or replay does not answer."""
        where = await asyncio.to_thread(self._replay)
        if where is None:
            return None
        async with self._asking:
            address, rpc = where
            if self._live is None or self._live.address != address:
                await self.close()
                self._live = LiveState(address, rpc)
            return await self._live.read()

    async def close(self) -> None:
        """Close the connection to replay."""
        if self._live is not None:
            await self._live.close()

    def overview(self, replay: ReplayStats | None = None) -> Json:
        """Return the state of the run. `replay`: its ledger and admission, if it answers."""
        history = self.history
        config, last = self.config, history.last_step
        stages = sorted(path.name for path in (self.path / STAGES).glob("*") if path.is_dir())
        steps = config.learner.steps if config else None
        state, words = self._state(history, steps, answers=replay is not None)
        overview: Json = finite(
            {
                "name": self.name,
                "path": str(self.path),
                "state": state,
                "words": words,
                "step": max(history.steps, default=0),
                "steps": steps,
                "seconds_left": history.seconds_left(steps) if steps and state == "running" else None,
                "last": {key: last[key] for key in SHOWN_KEYS if key in last},
                "updated": last.get("time"),
                "config": _config(config),
                "evaluations": [history.evaluations[step] for step in sorted(history.evaluations)],
                "keys": self.keys,
                "alarms": [asdict(alarm) for alarm in self._alarms(history, config, replay)],
                "unreadable": self._rows.unreadable,
                "summary": self._summary(),
                "stages": stages,
                "rows": history.rows,
            }
        )
        return overview

    def _alarms(self, history: History, config: RunConfig | None, replay: ReplayStats | None) -> list[Alarm]:
        """Return the alarms, by the ledger of replay, or by that of summary.json once the run has ended."""
        if replay is None and not self._launcher_runs():
            return find_alarms(history, config=config, ledger=self._stored_ledger())
        return find_alarms(
            history,
            config=config,
            ledger=None if replay is None else replay.ledger,
            now=time.time(),
            paused=None if replay is None else replay.admission,
        )

    def _stored_ledger(self) -> Ledger | None:
        try:
            return stored_ledger(with_rows(self.path).summary)
        except UsageError:
            return None

    def _state(self, history: History, steps: int | None, *, answers: bool) -> tuple[str, str]:
        """Return `running`, `starting`, `finished` or `stopped`, and the same in words.

        `answers`: whether replay does.
        """
        launcher = self._launcher_runs()
        stage = self.rows_dir
        of_stage = f"stage {stage.name}: " if stage != self.path else ""
        if self._is_done(history, steps):
            return "finished", f"finished all {history.finished:,} steps" if history.finished else "finished"
        if launcher or answers or (launcher is None and self._is_fresh(history)):
            trains = ("running", f"{of_stage}training")
            return trains if history.steps else ("starting", f"{of_stage}starting: no step is done yet")
        if not history.steps:
            return "stopped", f"{of_stage}stopped before its first step; its logs say why"
        words = f"{of_stage}stopped at step {max(history.steps):,}"
        return "stopped", words if self.pod else f"{words}; `slipstream run … --resume` continues it"

    def _is_done(self, history: History, steps: int | None) -> bool:
        """Return whether a run, a stage, or a run with stages has come to its end."""
        if (self.path / STAGE_DONE).exists():
            return True
        if (self.path / STAGES).is_dir():
            return bool(self._summary()) and not self._launcher_runs()
        return history.finished is not None and (steps is None or history.finished >= steps)

    def _launcher_runs(self) -> bool | None:
        """Return whether `slipstream run` holds the lock of the directory; None if there is no lock."""
        owner = self.path.parent.parent if self.path.parent.name == STAGES else self.path
        return is_running(RunDirectory(owner)) if (owner / LOCK).exists() else None

    def _is_fresh(self, history: History) -> bool:
        return time.time() - number(history.last_step, "time") < QUIET_SECONDS

    def _replay(self) -> tuple[str, RpcConfig] | None:
        """Return the address of replay and how to call it; None if the run does not go on."""
        if self.pod is not None:
            return self.pod.replay.address, self.pod.rpc
        if not self._launcher_runs():
            return None
        try:
            running = find_running(self.path)
            return running.replay_address, running.rpc
        except (CommandError, OSError, ValueError, TypeError):
            return None

    def _summary(self) -> Json | None:
        try:
            summary = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return summary if isinstance(summary, dict) else None


def _identity(run_dir: Path) -> tuple[int, ...]:
    """Return what differs between two directories of a path, of which a later one may have the same inode.

    Errors: OSError.
    """
    try:
        config = (run_dir / CONFIG).stat()
    except FileNotFoundError:
        return (run_dir.stat().st_ino,)
    return run_dir.stat().st_ino, config.st_ino, config.st_mtime_ns


def _config(config: RunConfig | None) -> Json | None:
    if config is None:
        return None
    return {
        "name": config.name,
        "algorithm": config.algorithm.preset,
        "groups_per_step": config.learner.groups_per_step,
        "group_size": config.rollout.group_size,
        "max_staleness": config.staleness.max_staleness,
        "pipeline_depth": config.staleness.pipeline_depth,
        "stored_share": config.learner.samples.share,
    }
