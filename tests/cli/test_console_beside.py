"""The console beside a run: it starts, ends with the run, and none of its failures is one of the run."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from console.runs import make_run
from slipstream.cli.launch import console
from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.config import RunConfig, parse_config
from slipstream.processes.lifetime.cleanup import ProcessCleanup


def beside(
    path: Path,
    during: Callable[[list[str], ProcessCleanup], Awaitable[None]],
    *,
    folder: str | None = None,
    **settings: object,
) -> list[str]:
    """Run the console of a run while `during` lasts, and return the lines that the user sees.

    `folder`: a folder in the directory of the run, such as one that has the name of a file of the console.
    """
    config: RunConfig = parse_config({"console": settings})
    lines: list[str] = []
    run = RunDirectory(make_run(path, steps=1))
    run.make_folders()
    if folder is not None:
        (run.path / folder).mkdir()

    async def scenario() -> None:
        with ProcessCleanup() as cleanup:
            async with console.beside(run, config.console, cleanup, say=lines.append):
                await during(lines, cleanup)

    asyncio.run(scenario())
    return lines


async def told(lines: list[str], _: ProcessCleanup) -> None:
    deadline = time.monotonic() + 60
    while not lines and time.monotonic() < deadline:  # noqa: ASYNC110 (a list has no event)
        await asyncio.sleep(0.05)


def name_of(address: str) -> str:
    """Return the name of the run that a console shows."""
    with urlopen(f"{address}api/run") as answer:
        name: str = json.loads(answer.read())["name"]
    return name


def test_it_serves_the_run_and_is_no_process_that_the_run_has_left(tmp_path: Path) -> None:
    async def look(lines: list[str], cleanup: ProcessCleanup) -> None:
        await told(lines, cleanup)
        assert await asyncio.to_thread(name_of, lines[0].split()[1]) == "made"
        assert cleanup.sweep(grace=0) == 0

    lines = beside(tmp_path / "made", look)
    assert lines[0].startswith("console http://127.0.0.1:")
    pid = json.loads((tmp_path / "made" / "pods" / "console.json").read_text())["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_port_that_is_in_use_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        lines = beside(tmp_path / "made", told, port=taken.getsockname()[1])
    assert lines[0].startswith("no console: console exited with status 2 before it was ready")
    assert "Address already in use" in lines[0]


def test_without_its_packages_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "NEEDED", ("no_such_package",))
    lines = beside(tmp_path / "made", told)
    assert lines == [
        "no console: no_such_package not installed; pip install '.[console]' in a clone of Slipstream"
    ]


@pytest.mark.parametrize("file", ["logs/console.log", "pods/console.json"])
def test_a_console_that_cannot_start_is_told_and_the_run_goes_on(tmp_path: Path, file: str) -> None:
    (line,) = beside(tmp_path / "made", told, folder=file)
    assert line.startswith("no console: ")
    assert str(tmp_path / "made" / file) in line


def test_a_run_without_a_console_starts_none(tmp_path: Path) -> None:
    async def nothing(_: list[str], __: ProcessCleanup) -> None:
        await asyncio.sleep(0)

    assert beside(tmp_path / "made", nothing, enabled=False) == []
    assert not (tmp_path / "made" / "logs" / "console.log").exists()
