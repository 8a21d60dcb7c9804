"""Paths of a configuration, and how messages name them."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

HomePath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path in which `~` is the home directory of the user who reads the configuration."""


def located(path: Path) -> str:
    """Return the path as messages name it: a relative path with the working directory that it starts from."""
    return str(path) if path.is_absolute() else f"{path} (in {Path.cwd()})"
