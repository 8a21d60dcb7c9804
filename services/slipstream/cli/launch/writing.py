"""The progress of a checkpoint or model that the learner writes, from the sizes of its files.

The learner writes into a folder `.partial-NAME`, and renames it when it is complete. The state.json of a
checkpoint is written first, and has the size of the checkpoint.
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
    """Name of the complete folder."""
    written: int
    """Bytes of weights that are written."""
    total: int | None
    """Bytes of weights of the complete folder; None if state.json does not have them."""

    def __str__(self) -> str:
        size = self.written if self.total is None else max(self.written, self.total)
        unit, name, digits = (GIGABYTE, "GB", 1) if size >= GIGABYTE else (MEGABYTE, "MB", 0)
        of = "" if self.total is None else f" of {size / unit:.{digits}f}"
        return f"writing {self.written / unit:.{digits}f}{of} {name} ({self.what})"


def read_writing(run: Path) -> Writing | None:
    """Return the folder that is being written in a run directory; None if there is none."""
    for parent in (run / "checkpoints", run / "rounds", run):
        for folder in sorted(parent.glob(f"{PARTIAL}*")):
            return Writing(folder.name.removeprefix(PARTIAL), _bytes_below(folder), _total(folder))
    return None


def _bytes_below(folder: Path) -> int:
    """Return the size of the weights; other files are small, and not part of the total."""
    total = 0
    for path in folder.rglob("*.safetensors"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # the folder has just been renamed
    return total


def _total(folder: Path) -> int | None:
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    size = state.get("bytes") if isinstance(state, dict) else None
    return size if isinstance(size, int) else None
