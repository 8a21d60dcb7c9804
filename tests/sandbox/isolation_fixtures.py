"""Fixtures for tests of programs: without bubblewrap and, with the marker `chart`, also inside it."""

import asyncio
from pathlib import Path

import pytest
from slipstream.sandbox import bubblewrap_trial


@pytest.fixture(scope="session")
def working_bubblewrap() -> None:
    """Skip the test where bubblewrap is missing or does not work."""
    try:
        asyncio.run(bubblewrap_trial.find())
    except bubblewrap_trial.BubblewrapUnavailable as reason:
        pytest.skip(f"bubblewrap does not work here: {reason}")


@pytest.fixture(params=["bare", pytest.param("bubblewrap", marks=pytest.mark.chart)])
def outer_isolation(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Run the test with a PATH without `bwrap`, or with a working bubblewrap."""
    if request.param == "bubblewrap":
        request.getfixturevalue("working_bubblewrap")
        return
    empty: Path = tmp_path_factory.mktemp("path")
    monkeypatch.setenv("PATH", str(empty))
