"""Run `slipstream run` as a user does: a process, its output, and its run directory."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BASE = """
name: circle
model: {tiny: {layers: 2, width: 64, heads: 2, max_tokens: 64}}
data: {kind: addition, digits: 1}
rewards:
  - {name: exact_match}
  - {name: format, weight: 0.1, pattern: '[0-9]+'}
staleness: {pipeline_depth: 2, max_staleness: 8}
rollout: {group_size: 4, max_groups: 16, max_new_tokens: 24}
learner:
  groups_per_step: 8
  learning_rate: 1.0e-3
  max_tokens_per_row: 256
  checkpoint: {every_steps: 5}
evaluation: {every_steps: 5, prompts: 4, samples_per_prompt: 2}
weights: {timeout_seconds: 30}
"""

SLIPSTREAM_RUN = (sys.executable, "-m", "slipstream.cli", "run")


class Run:
    """A process of `slipstream run`; every wait has a limit, and its failure shows the output."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        steps: int,
        program: Sequence[str] = SLIPSTREAM_RUN,
        base: str = BASE,
    ) -> None:
        config = directory / "run.yaml"
        config.write_text(base, encoding="utf-8")
        settings = [
            f"learner.steps={steps}",
            f"runs_dir={directory / 'runs'}",
            "warmup.steps=0",
            f"warmup.cache_dir={directory.parent / 'models'}",
            *arguments,
        ]
        sets = [part for s in settings if not s.startswith("--") for part in ("--set", s)]
        flags = [s for s in settings if s.startswith("--")]
        self.directory = directory
        self.output = directory / f"output-{time.monotonic_ns()}.log"
        self.process = subprocess.Popen(
            [*program, str(config), "--plain", *sets, *flags],
            stdout=self.output.open("w"),
            stderr=subprocess.STDOUT,
        )

    @property
    def run_dir(self) -> Path:
        """Return the newest run directory."""
        return (self.directory / "runs" / "latest").resolve()

    def rows(self, event: str) -> list[dict[str, Any]]:
        """Return the rows of an event that the learner has written."""
        file = self.run_dir / "metrics.jsonl"
        if not file.exists():
            return []
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return [row for row in rows if row["event"] == event]

    def version(self) -> int:
        """Return the policy version that the run has reached."""
        return max((row["version"] for row in self.rows("step")), default=0)

    def pod(self, name: str) -> dict[str, Any]:
        """Return the content of the ready file of a pod."""
        state: dict[str, Any] = json.loads((self.run_dir / "pods" / f"{name}.json").read_text())
        return state

    def log(self, name: str) -> str:
        """Return the log of a pod."""
        return (self.run_dir / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        summary: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return summary

    def wait_until(self, what: str, condition: Callable[[], bool], *, seconds: float = 120) -> None:
        """Wait for a condition. Errors: AssertionError if the run ends or the time is up."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.said()}"
            assert time.monotonic() < deadline, f"no {what} within {seconds} s:\n{self.said()}"
            time.sleep(0.05)

    def finish(self, *, seconds: float = 240) -> int:
        """Wait for the end of the run; return its exit status."""
        return self.process.wait(timeout=seconds)

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def said(self) -> str:
        """Return the end of the run's output."""
        return self.output.read_text()[-4000:]

    @contextmanager
    def another_rollout(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a rollout outside of the run, which gets its addresses from the environment."""
        addresses = {
            f"SLIPSTREAM_{pod.upper()}_ADDRESS": self.pod(pod)["address"] for pod in ("replay", "learner")
        }
        with (self.directory / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "slipstream.rollout"),
                    *("--config", str(self.run_dir / "config.yaml")),
                    *("--name", name),
                    *("--parent", str(os.getpid())),
                ],
                env=os.environ | addresses,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process
            finally:
                process.terminate()
                process.wait(timeout=20)


@contextmanager
def running(directory: Path, *arguments: str, steps: int, base: str = BASE) -> Iterator[Run]:
    """Start a run, and stop it at the end of the context."""
    run = Run(directory, *arguments, steps=steps, base=base)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            try:
                run.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()
