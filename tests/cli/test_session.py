"""The launcher's own tasks: what shows the run may fail, but not in silence."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.cli.launch.session import Session
from slipstream.config import parse_config


class Blind:
    """A display that cannot show rows."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        """Keep it."""
        self.said.append(line)

    def waiting(self, what: str, seconds: float) -> None:
        """Fail."""
        raise UnicodeError("no such character")


def test_a_display_that_fails_says_so_once_and_the_run_goes_on(tmp_path: Path) -> None:
    display: Any = Blind()
    cleanup: Any = SimpleNamespace(environment={}, started=lambda pid: None, reap=lambda: 0)
    config = parse_config({"model": {"tiny": {}}})

    class Trains:
        """A supervisor of a run that takes a while."""

        waiting_for = ("learner",)
        addresses: Mapping[str, str] = {}

        async def run(self, interrupted: asyncio.Event) -> None:
            await asyncio.sleep(0.1)

    async def run() -> object:
        session = Session(config, RunDirectory(tmp_path), (), cleanup, display)
        session._supervisor = Trains()  # type: ignore[assignment]
        interrupt: Any = SimpleNamespace(requested=asyncio.Event())
        return await session._train(interrupt)

    assert asyncio.run(run()) is None
    file = tmp_path / "metrics.jsonl"
    assert display.said == [f"no more steps are shown (UnicodeError: no such character); {file} has them"]
