"""How far the learner is with what it writes, read from the files themselves.

Checkpoints and models are written into folders whose names begin with `.partial-`, and forced to disk in
pieces; the folder gets its name when all is there. A checkpoint's state.json, written first, has its size.
"""

import json
from dataclasses import dataclass
from pathlib import Path

PARTIAL = ".partial-"
MEGABYTE, GIGABYTE = 10**6, 10**9


@dataclass(frozen=True, slots=True)
class Writing:
    """A folder that is being written."""

    what: str
    """Its name once it is whole."""
    written: int
    """Bytes that are there."""
    total: int | None
    """Bytes that it will have; None where nothing says so."""

    def __str__(self) -> str:
        size = self.written if self.total is None else max(self.written, self.total)
        unit, name, digits = (GIGABYTE, "GB", 1) if size >= GIGABYTE else (MEGABYTE, "MB", 0)
        of = "" if self.total is None else f" of {size / unit:.{digits}f}"
        return f"writing {self.written / unit:.{digits}f}{of} {name} ({self.what})"


def read_writing(run: Path) -> Writing | None:
    """What is being written in a run directory; None when nothing is."""
    for parent in (run / "checkpoints", run / "rounds", run):
        for folder in sorted(parent.glob(f"{PARTIAL}*")):
            return Writing(folder.name.removeprefix(PARTIAL), _bytes_below(folder), _total(folder))
    return None


def _bytes_below(folder: Path) -> int:
    """Size of the weights: the other files are small, and not part of the total."""
    total = 0
    for path in folder.rglob("*.safetensors"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # the folder has just got its name
    return total


def _total(folder: Path) -> int | None:
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    size = state.get("bytes") if isinstance(state, dict) else None
    return size if isinstance(size, int) else None
