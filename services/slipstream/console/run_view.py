"""What the console knows of one run directory."""

import json
import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from slipstream.cli.launch.alarms import find_alarms
from slipstream.cli.launch.history import History, number
from slipstream.cli.launch.run_directory import LOCK, RunDirectory, is_running
from slipstream.config import ConfigError, RunConfig, load_config
from slipstream.console.catalogue import CONFIG, METRICS, STAGES
from slipstream.console.live import LiveState
from slipstream.console.metric_rows import MetricRows, numeric_keys
from slipstream.console.tokens import finite
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

    `pod`: in a release, the configuration of the console's own pod, with the addresses of the run's services.
    """

    def __init__(self, name: str, path: Path, pod: RunConfig | None = None) -> None:
        self.name = name
        self.path = path
        self.pod = pod
        self._rows = MetricRows(path / METRICS)
        self._live: LiveState | None = None
        self._samples: SampleReader | None = None

    @cached_property
    def config(self) -> RunConfig | None:
        """The configuration; None if it is missing, or of a release that wrote it differently."""
        try:
            return load_config([self.path / CONFIG], [])
        except (ConfigError, OSError):
            return None

    @property
    def history(self) -> History:
        """The rows of the run so far. Errors: OSError."""
        return self._rows.refresh()

    @property
    def samples(self) -> SampleReader:
        """The stored completions. Errors: NoSamples."""
        if self._samples is None:
            self._samples = SampleReader(self.path)
        return self._samples

    @cached_property
    def timeline(self) -> TimelineReader:
        """The spans of the processes; none for a run of an older release."""
        return TimelineReader(self.path)

    async def live(self) -> Json | None:
        """Return what replay says of the run; None if it has ended or replay does not answer."""
        address = self._replay_address()
        if address is None:
            return None
        if self._live is None or self._live.address != address:
            if self._live is not None:
                await self._live.close()
            rpc = (self.pod or self.config or RunConfig()).rpc
            self._live = LiveState(address, rpc, self.path / "pods")
        return await self._live.read()

    async def close(self) -> None:
        """Close the connection to replay."""
        if self._live is not None:
            await self._live.close()

    def overview(self) -> Json:
        """Return the state of the run as its directory tells it."""
        history = self.history
        config, last = self.config, history.last_step
        alarms = find_alarms(history, config=config, now=time.time() if self._launcher_runs() else None)
        steps = config.learner.steps if config else None
        state, words = self._state(history, steps)
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
                "keys": numeric_keys(history),
                "alarms": [asdict(alarm) for alarm in alarms],
                "unreadable": self._rows.unreadable,
                "summary": self._summary(),
                "stages": sorted(path.name for path in (self.path / STAGES).glob("*") if path.is_dir()),
            }
        )
        return overview

    def _state(self, history: History, steps: int | None) -> tuple[str, str]:
        """Return `running`, `starting`, `finished` or `stopped`, and the same in words."""
        launcher = self._launcher_runs()
        if history.finished is not None and (steps is None or history.finished >= steps):
            return "finished", f"finished all {history.finished:,} steps"
        if launcher or (launcher is None and self._is_fresh(history)):
            return ("running", "training") if history.steps else ("starting", "starting: no step is done yet")
        if not history.steps:
            return "stopped", "stopped before its first step; its logs say why"
        return "stopped", f"stopped at step {max(history.steps):,}; `slipstream run … --resume` continues it"

    def _launcher_runs(self) -> bool | None:
        """Return whether `slipstream run` holds the lock of the directory; None if there is no lock."""
        owner = self.path.parent.parent if self.path.parent.name == STAGES else self.path
        return is_running(RunDirectory(owner)) if (owner / LOCK).exists() else None

    def _is_fresh(self, history: History) -> bool:
        return time.time() - number(history.last_step, "time") < QUIET_SECONDS

    def _replay_address(self) -> str | None:
        """Return the address of replay: of the release, or of the run on this machine."""
        if self.pod is not None:
            return self.pod.replay.address
        if not self._launcher_runs():
            return None
        try:
            ready = json.loads((self.path / "pods" / "replay.json").read_text(encoding="utf-8"))
            return str(ready["address"]) or None
        except (OSError, ValueError, KeyError):
            return None

    def _summary(self) -> Json | None:
        try:
            summary = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return summary if isinstance(summary, dict) else None


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
