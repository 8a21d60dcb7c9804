"""Tests of programs are had without bubblewrap, and once more, where the chart is tested, within it."""

import asyncio
from pathlib import Path

import pytest
from slipstream.sandbox import bubblewrap_trial


@pytest.fixture(scope="session")
def working_bubblewrap() -> None:
    """Skips where there is none, or it does not work."""
    try:
        asyncio.run(bubblewrap_trial.find())
    except bubblewrap_trial.BubblewrapUnavailable as reason:
        pytest.skip(f"no bubblewrap here: {reason}")


@pytest.fixture(params=["bare", pytest.param("bubblewrap", marks=pytest.mark.chart)])
def outer_wall(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A PATH without `bwrap`, or one with a bubblewrap that works."""
    if request.param == "bubblewrap":
        request.getfixturevalue("working_bubblewrap")
        return
    empty: Path = tmp_path_factory.mktemp("path")
    monkeypatch.setenv("PATH", str(empty))
