"""The loss lab for the page: one comparison at a time, in a process of its own, kept once it is done."""

import asyncio
import json
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slipstream.processes.lifetime.parent_death import with_parent_death

Json = dict[str, Any]
MOST_SECONDS: Final = 600.0
MOST_KEPT: Final = 16


class LabFailed(ValueError):
    """The lab cannot compare this step; the message is that of the lab."""


@dataclass(slots=True)
class LabJobs:
    """Comparisons by run and step."""

    _jobs: "OrderedDict[tuple[Path, int], asyncio.Task[Json]]" = field(default_factory=OrderedDict)
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    def result(self, run_dir: Path, step: int) -> Json | None:
        """Return the comparison of a step; None while it is computed. Errors: LabFailed."""
        key = (run_dir, step)
        if key not in self._jobs:
            self._jobs[key] = asyncio.create_task(self._compare(run_dir, step))
            while len(self._jobs) > MOST_KEPT:
                self._jobs.popitem(last=False)[1].cancel()
        job = self._jobs[key]
        if not job.done():
            return None
        if job.cancelled() or job.exception() is not None:
            del self._jobs[key]
        return job.result()

    async def close(self) -> None:
        """End what is being computed."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    async def _compare(self, run_dir: Path, step: int) -> Json:
        options = {"run_dir": str(run_dir), "step": step, "output": None, "json": True}
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
