"""Chromium, and the program of the console over made-up runs."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser.pages import Console, hostile_vocabulary, long_completion
from console.runs import make_run

CHROMIUM = shutil.which("chromium")
"""Debian's; Playwright's own builds are not downloaded."""
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """Start Chromium. Playwright holds the event loop of the thread until its end, and its greenlets disturb
    `ast.parse` of other tests, so the tests of this folder run in a process of their own."""
    if CHROMIUM is None:
        pytest.skip("this machine has no chromium; docker/setup-browser.sh installs it")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs, one of them with hostile tokens and one completion of 100,000 tokens."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "other", steps=3)
    made = make_run(folder / "made", steps=5)
    hostile_vocabulary(made)
    long_completion(made, tokens=100_000)
    return folder


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[Path], str]]:
    """Start the console over a directory, and return its address."""
    started: list[subprocess.Popen[str]] = []

    def start(run_dir: Path, *options: str) -> str:
        command = [sys.executable, "-m", "slipstream.console", str(run_dir), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().split()[1]

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def address(runs: Path, serve: Callable[[Path], str]) -> str:
    return serve(runs / "made")


@pytest.fixture
def console(chromium: object, address: str) -> Iterator[Console]:
    """Return a page of the console; the test fails for any error that the page reports."""
    context = chromium.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
    context.set_default_timeout(20_000)
    console = Console(context.new_page(), address)
    yield console
    context.close()
    assert console.errors == []
