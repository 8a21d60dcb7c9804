"""The runs that the console shows: a run directory, those beside it, and the stages of each."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STAGES: Final = "stages"
METRICS: Final = "metrics.jsonl"
CONFIG: Final = "config.yaml"
PARTS: Final = ("", METRICS, CONFIG, "samples", "timeline.jsonl", "summary.json", "pods", "checkpoints")
"""What the console reads of a run directory."""
LINK_DEPTH: Final = 3
"""Levels of a folder in which links are looked for, as in checkpoints/STEP/model/FILE."""


class NoRun(ValueError):
    """There is no run of this name, or the directory is no run; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A folder of runs, and the one that is shown first. A run is named by its path below the folder."""

    root: Path
    first: str

    def names(self) -> list[str]:
        """Return the names of all runs, the newest first; a stage follows its run."""
        runs = sorted(filter(self._is_listed, _folders(self.root)), key=_changed, reverse=True)
        return [name for run in runs for name in (run.name, *_stage_names(run))]

    def _is_listed(self, path: Path) -> bool:
        return path.name == self.first or is_run(path)

    def directory(self, name: str) -> Path:
        """Return the directory of a run. Errors: NoRun."""
        parts = name.split("/")
        known_form = len(parts) == 1 or (len(parts) == 3 and parts[1] == STAGES)
        if not known_form or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise NoRun(f"{name!a} is not the name of a run")
        path = self.root.joinpath(*parts)
        if not path.is_dir():
            raise NoRun(f"{path}: there is no such directory; it may have been moved or deleted")
        for run in (path, *(Path(stage) for stage in _entries(path / STAGES))):
            if any(not _leads_to(self.root, part) for part in _read_paths(run)):
                raise NoRun(f"{run}: a link in it leads out of {self.root}, and is not followed")
        if not is_run(path) and not _stages(path):
            raise NoRun(
                f"{path}: has neither {CONFIG} nor {METRICS}, so it is no run of Slipstream, or one that has "
                "not begun"
            )
        return path


def open_catalogue(path: Path) -> Catalogue:
    """Return the catalogue of a run directory, or of a folder of runs. Errors: NoRun."""
    path = path.resolve()
    if not path.is_dir():
        raise NoRun(f"{path}: there is no such directory; name a run, such as runs/latest")
    if is_run(path) or _stages(path):
        return Catalogue(path.parent, path.name)
    runs = sorted(filter(is_run, _folders(path)), key=_changed)
    if not runs:
        raise NoRun(f"{path}: has no {CONFIG}, and no folder in it has one; name the directory of a run")
    return Catalogue(path, runs[-1].name)


def expect_run(path: Path) -> Catalogue:
    """Return the catalogue of a run directory that the run has perhaps not made yet."""
    path = path.absolute()
    return Catalogue(path.parent, path.name)


def is_run(path: Path) -> bool:
    """Return whether a directory is that of a run, or of a stage; one that cannot be read is none."""
    try:
        return (path / CONFIG).is_file() or (path / METRICS).is_file()
    except OSError:
        return False


def _leads_to(root: Path, path: Path) -> bool:
    """Return whether a path is below a folder once its links are followed."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a link to itself
        return False


def _read_paths(run: Path) -> Iterator[Path]:
    """Yield what the console reads of a run or stage: its parts, and the links in those that are folders."""
    for name in PARTS:
        yield run / name
        yield from _links(run / name, LINK_DEPTH if name else 0)


def _links(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the links of a folder, and of its folders up to a depth."""
    if not depth:
        return
    for entry in _entries(folder):
        if entry.is_symlink():
            yield Path(entry)
        if entry.is_dir():
            yield from _links(Path(entry), depth - 1)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing of what is no folder, or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _folders(path: Path) -> list[Path]:
    """Return the folders that can be read, whose names are text."""
    return [path / entry.name for entry in _entries(path) if _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        entry.name.encode()
        return entry.is_dir() and not entry.is_symlink()
    except (OSError, UnicodeEncodeError):
        return False


def _stages(run: Path) -> list[str]:
    return sorted(stage.name for stage in _folders(run / STAGES) if is_run(stage))


def _stage_names(run: Path) -> list[str]:
    return [f"{run.name}/{STAGES}/{stage}" for stage in _stages(run)]


def _changed(run: Path) -> float:
    """Return the time of the last change; 0 for a run that is gone."""
    try:
        file = next((run / name for name in (METRICS, CONFIG) if (run / name).exists()), run)
        return file.stat().st_mtime
    except OSError:
        return 0.0
