"""A display that fails does not stop the run, and its failure is reported."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.cli.launch.session import Session
from slipstream.config import parse_config


class FailingDisplay:
    """A display that fails to show rows."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        """Record a line."""
        self.lines.append(line)

    def waiting(self, what: str, seconds: float) -> None:
        """Fail."""
        raise UnicodeError("no such character")


def test_the_failure_of_a_display_is_reported_once_and_the_run_continues(tmp_path: Path) -> None:
    display: Any = FailingDisplay()
    cleanup: Any = SimpleNamespace(environment={}, started=lambda pid: None, reap=lambda: 0)
    config = parse_config({"model": {"tiny": {}}})

    class SlowSupervisor:
        """A supervisor of a run that takes some time."""

        waiting_for = ("learner",)
        addresses: Mapping[str, str] = {}

        async def run(self, interrupted: asyncio.Event) -> None:
            await asyncio.sleep(0.1)

    async def run() -> object:
        session = Session(config, RunDirectory(tmp_path), (), cleanup, display)
        session._supervisor = SlowSupervisor()  # type: ignore[assignment]
        interrupt: Any = SimpleNamespace(requested=asyncio.Event())
        return await session._train(interrupt)

    assert asyncio.run(run()) is None
    file = tmp_path / "metrics.jsonl"
    assert display.lines == [f"no more steps are shown (UnicodeError: no such character); {file} has them"]
