"""The loss lab for the page: one comparison at a time, in a process of its own, kept once it is done."""

import asyncio
import json
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipstream.console.catalogue import CONFIG
from slipstream.processes.lifetime.parent_death import with_parent_death
from slipstream.samples.reader import NoSamples, SampleReader

Json = dict[str, Any]
MOST_SECONDS: Final = 600.0
MOST_KEPT: Final = 16
MESSAGE: Final = "slipstream: "
"""Begins the message of an error of the lab."""


class LabFailed(ValueError):
    """The lab cannot compare this step; the message is that of the lab."""


class LabBusy(ValueError):
    """Too many comparisons wait for their turn."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The stored batch of a step. `stored`: what differs once its rows are other ones."""

    run_dir: Path
    step: int
    stored: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which losses are compared with that of the run. No candidates: all of the catalogue."""

    candidates: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    """Objectives of the user, `package.module:function`."""

    def options(self) -> Mapping[str, Any]:
        """Return the options of the lab. Named candidates do not exclude the objectives of the user."""
        candidates = (*self.candidates, *self.objectives) if self.candidates else ()
        return {"candidates": candidates, "objectives": self.objectives}


EVERYTHING: Final = Choice()


def check_objectives(objectives: Sequence[str], allowed: Sequence[str]) -> None:
    """Check that only functions are called that the person who started the console has named.

    Errors: LabFailed.
    """
    for objective in objectives:
        if objective not in allowed:
            raise LabFailed(
                f"objective {objective!r}: this console calls no function of that name. It calls "
                f"{', '.join(allowed) or 'none'}; whoever starts it names further ones: slipstream console "
                "RUN_DIR --objective package.module:function"
            )


def stored_batch(run_dir: Path, reader: SampleReader, step: int) -> Batch:
    """Return the batch of a step; one that was trained again, or of a new directory, is another batch.

    A merge of its file leaves it the same. Errors: NoSamples, OSError.
    """
    rows = reader.trained_at(step)
    if not rows:
        raise NoSamples(f"no completion that step {step} trained on is stored")
    return Batch(run_dir, step, (run_dir.stat().st_ino, len(rows), *sorted(set(rows))))


@dataclass(slots=True)
class LabJobs:
    """Comparisons by batch and choice. `config`: configuration files of a run whose directory has none."""

    config: Sequence[Path] = ()
    _jobs: "OrderedDict[tuple[Batch, Choice], asyncio.Task[Json]]" = field(default_factory=OrderedDict)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def start(self, batch: Batch, choice: Choice = EVERYTHING) -> None:
        """Begin the comparison of a batch, unless it has begun and not failed. Errors: LabBusy."""
        wanted = batch, choice
        if wanted in self._jobs and not _has_failed(self._jobs[wanted]):
            return
        self._jobs.pop(wanted, None)
        done = [each for each, job in self._jobs.items() if job.done()]
        if len(self._jobs) >= MOST_KEPT and not done:
            raise LabBusy(f"{MOST_KEPT} comparisons wait for their turn; try again later")
        if len(self._jobs) >= MOST_KEPT:
            del self._jobs[done[0]]
        self._jobs[wanted] = asyncio.create_task(self._compare(batch, choice))

    def has_begun(self, batch: Batch, choice: Choice = EVERYTHING) -> bool:
        """Return whether the comparison of a batch is computed, or kept."""
        return (batch, choice) in self._jobs

    def result(self, batch: Batch, choice: Choice = EVERYTHING) -> Json | None:
        """Return the comparison; None while it is computed, or if it has not begun.

        A failure is kept until the comparison begins anew. Errors: LabFailed.
        """
        job = self._jobs.get((batch, choice))
        return None if job is None or not job.done() else job.result()

    async def close(self) -> None:
        """End what is being computed."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    async def _compare(self, batch: Batch, choice: Choice) -> Json:
        config = [] if (batch.run_dir / CONFIG).exists() else [str(file) for file in self.config]
        options: Json = {"run_dir": str(batch.run_dir), "step": batch.step, "output": None, "json": True}
        options |= {"config": config, **choice.options()}
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
            raise LabFailed(_reason(err.decode(errors="replace")))
        report: Json = json.loads(out)
        return report


def _has_failed(job: "asyncio.Task[Json]") -> bool:
    return job.done() and (job.cancelled() or job.exception() is not None)


def _reason(output: str) -> str:
    """Return the error message of the lab, which may have several lines, or its last line of another kind."""
    lines = output.strip().splitlines() or ["the lab ended without a word"]
    starts = [number for number, line in enumerate(lines) if line.startswith(MESSAGE)]
    return "\n".join(lines[starts[-1] :]).removeprefix(MESSAGE) if starts else lines[-1]
