"""A mutant is one small fault in the maths; this module runs the tests that have to fail because of it.

A changed copy of the sources and their tests is written to a separate folder. A process that is forked from
one with torch already loaded runs the tests there, without shrinking failures. Seeds are fixed, so a mutant
that survives once always does.
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
"""The time after which a run counts as broken."""

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["hypothesis", "pytest", "torch", "transformers"])

_WRONG_SOURCES: Final = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the sources, and the tests that have to detect faults in it, as paths from the root."""

    sources: Path
    tests: Path
    further: tuple[Path, ...]
    """Further files that the tests need."""


ALGORITHMS: Final = Part(
    sources=Path("services/slipstream/algorithms"),
    tests=Path("tests/algorithms"),
    further=(
        Path("services/slipstream/__init__.py"),
        Path("services/slipstream/functions.py"),
        Path("pyproject.toml"),
    ),
)
LEARNER: Final = Part(
    sources=Path("services/slipstream/learner"),
    tests=Path("tests/learner"),
    further=(Path("services/slipstream"), Path("tests/embedded_redis.py"), Path("pyproject.toml")),
)


class Outcome(Enum):
    """The result of the tests with a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    BROKEN = "did not run"
    """The mutant cannot be imported or hangs, or there is no test: the tests are not judged by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A replacement in one file of a part's sources, with which one of its tests has to fail."""

    name: str
    """The fault in words."""
    file: str
    old: str
    """The text to replace; the file must contain it exactly once."""
    new: str
    tests: tuple[str, ...]
    """Files of the part's tests, the one that fails quickest first."""
    part: Part = ALGORITHMS

    @property
    def path(self) -> Path:
        """Return the path of the file, relative to the root."""
        return self.part.sources / self.file

    def apply(self, source: str) -> str:
        """Return the source with the fault. Errors: ValueError unless `old` is in it exactly once."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"mutant {self.name!r}: {self.file} has {self.old!r} {count} times, needs 1")
        return source.replace(self.old, self.new)


def outcome_of(mutant: Mutant, folder: Path) -> tuple[Outcome, str]:
    """Run the mutant's tests in an empty folder; return the outcome and the output of pytest."""
    target = folder / mutant.path
    copy_sources(folder, mutant.part)
    target.write_text(mutant.apply(target.read_text()))
    return run_tests(folder, mutant.part, mutant.tests)


def copy_sources(folder: Path, part: Part) -> None:
    """Copy the sources and tests of a part into an empty folder."""
    ignore = shutil.ignore_patterns("__pycache__")
    for path in (part.sources, part.tests, *part.further):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, folder / path, ignore=ignore, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / path, folder / path)


def run_tests(folder: Path, part: Part, tests: tuple[str, ...]) -> tuple[Outcome, str]:
    """Run files of the copied tests up to the first failure."""
    log = folder / "log"
    process = _FORKS.Process(target=_run, args=(folder, log, [str(part.tests / name) for name in tests]))
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
