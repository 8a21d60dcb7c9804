"""One small fault in the maths, and the run of the tests that have to notice it.

A changed copy of the sources and their tests goes into a folder of its own; a process forked from one that
has torch loaded already runs the tests there, without shrinking what fails. Seeds are fixed: a mutant that
survives once always does.
"""

import contextlib
import os
import shutil
import sys
from dataclasses import dataclass
from enum import Enum
from multiprocessing import get_context
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 1200.0
"""After so long a run has told nothing."""

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["hypothesis", "pytest", "torch", "transformers"])

_WRONG_SOURCES: Final = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A part of the sources with faults, and the tests that have to notice them. Paths are from the root."""

    sources: Path
    tests: Path
    beside: tuple[Path, ...]
    """What the tests need besides both."""


ALGORITHMS: Final = Room(
    sources=Path("services/slipstream/algorithms"),
    tests=Path("tests/algorithms"),
    beside=(
        Path("services/slipstream/__init__.py"),
        Path("services/slipstream/functions.py"),
        Path("pyproject.toml"),
    ),
)
LEARNER: Final = Room(
    sources=Path("services/slipstream/learner"),
    tests=Path("tests/learner"),
    beside=(Path("services/slipstream"), Path("tests/embedded_redis.py"), Path("pyproject.toml")),
)


class Outcome(Enum):
    """What the tests made of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    BROKEN = "did not run"
    """It cannot be imported, hangs, or no test was found: it says nothing about the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A replacement in one file of a room's sources, which has to make one of its tests fail."""

    name: str
    """What is wrong then."""
    file: str
    old: str
    """Must be there exactly once."""
    new: str
    tests: tuple[str, ...]
    """Files of the room's tests, the quickest to notice first."""
    room: Room = ALGORITHMS

    @property
    def path(self) -> Path:
        """The file, from the root."""
        return self.room.sources / self.file

    def apply(self, source: str) -> str:
        """Return the source with the fault in it. Raises ValueError unless `old` is there exactly once."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"mutant {self.name!r}: {self.file} has {self.old!r} {found} times, needs 1")
        return source.replace(self.old, self.new)


def outcome_of(mutant: Mutant, folder: Path) -> tuple[Outcome, str]:
    """Run the mutant's tests in an empty folder; return what came of it and what pytest printed."""
    target = folder / mutant.path
    copy_sources(folder, mutant.room)
    target.write_text(mutant.apply(target.read_text()))
    return run_tests(folder, mutant.room, mutant.tests)


def copy_sources(folder: Path, room: Room) -> None:
    """Copy a room's sources and tests into an empty folder."""
    ignore = shutil.ignore_patterns("__pycache__")
    for path in (room.sources, room.tests, *room.beside):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, folder / path, ignore=ignore, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / path, folder / path)


def run_tests(folder: Path, room: Room, tests: tuple[str, ...]) -> tuple[Outcome, str]:
    """Run files of the copied tests up to the first failure."""
    log = folder / "log"
    process = _FORKS.Process(target=_run, args=(folder, log, [str(room.tests / name) for name in tests]))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return Outcome.BROKEN, f"not done after {SECONDS:.0f} s\n{log.read_text()}"
    outcomes = {0: Outcome.SURVIVED, 1: Outcome.CAUGHT}
    return outcomes.get(process.exitcode or 0, Outcome.BROKEN), log.read_text()


def _run(folder: Path, log: Path, tests: list[str]) -> None:
    import pytest
    from hypothesis import Phase, settings

    os.chdir(folder)
    settings.register_profile(
        "mutants", derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutants")
    with log.open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        options = [
            "--rootdir",
            str(folder),
            "-x",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "-m",
            "not trl",
        ]
        code = int(pytest.main([*options, *tests]))
    origin = sys.modules["slipstream.algorithms"].__file__ or ""
    os._exit(code if Path(origin).is_relative_to(folder) else _WRONG_SOURCES)
