"""A path as messages name it: a relative one with the folder that it was looked for in."""

from pathlib import Path


def place(path: Path) -> str:
    """The path; with the working directory behind it when it depends on that."""
    return str(path) if path.is_absolute() else f"{path} (in {Path.cwd()})"
