"""The loss lab for the page: one comparison at a time, in a process of its own, kept once it is done."""

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipstream.console.catalogue import CONFIG
from slipstream.processes.lifetime.parent_death import with_parent_death
from slipstream.samples.folder import FOLDER, parts_of

Json = dict[str, Any]
MOST_SECONDS: Final = 600.0
MOST_KEPT: Final = 16


class LabFailed(ValueError):
    """The lab cannot compare this step; the message is that of the lab."""


class LabBusy(ValueError):
    """Too many comparisons wait for their turn."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The stored batch of a step. `stored`: its files with the times of their change."""

    run_dir: Path
    step: int
    stored: tuple[tuple[str, int], ...]


def stored_batch(run_dir: Path, step: int) -> Batch:
    """Return the batch of a step; one that was trained again is another batch."""
    parts = [part for part in parts_of(run_dir / FOLDER) if part.has_any(step, step)]
    return Batch(run_dir, step, tuple((part.path.name, part.path.stat().st_mtime_ns) for part in parts))


@dataclass(slots=True)
class LabJobs:
    """Comparisons by batch. `config`: files of the configuration of a run whose directory has none."""

    config: Sequence[Path] = ()
    _jobs: "OrderedDict[Batch, asyncio.Task[Json]]" = field(default_factory=OrderedDict)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def start(self, batch: Batch) -> None:
        """Begin the comparison of a batch, unless it has begun. Errors: LabBusy."""
        if batch in self._jobs:
            return
        done = [each for each, job in self._jobs.items() if job.done()]
        if len(self._jobs) >= MOST_KEPT and not done:
            raise LabBusy(f"{MOST_KEPT} comparisons wait for their turn; try again later")
        if len(self._jobs) >= MOST_KEPT:
            del self._jobs[done[0]]
        self._jobs[batch] = asyncio.create_task(self._compare(batch))

    def result(self, batch: Batch) -> Json | None:
        """Return the comparison; None while it is computed, or if it has not begun. Errors: LabFailed."""
        job = self._jobs.get(batch)
        if job is None or not job.done():
            return None
        if job.cancelled() or job.exception() is not None:
            del self._jobs[batch]
        return job.result()

    async def close(self) -> None:
        """End what is being computed."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    async def _compare(self, batch: Batch) -> Json:
        config = [] if (batch.run_dir / CONFIG).exists() else [str(file) for file in self.config]
        options = {"run_dir": str(batch.run_dir), "step": batch.step, "output": None, "json": True}
        options["config"] = config
        command = with_parent_death([sys.executable, "-m", "slipstream.lab.report", json.dumps(options)])
        async with self._one:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(MOST_SECONDS):
                    out, err = await process.communicate()
            except TimeoutError:
                raise LabFailed(f"the comparison took more than {MOST_SECONDS:g} s") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0:
            lines = err.decode(errors="replace").strip().splitlines() or ["the lab ended without a word"]
            raise LabFailed(lines[-1].removeprefix("slipstream: "))
        report: Json = json.loads(out)
        return report
