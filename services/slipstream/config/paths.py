"""Paths of a configuration: `~` is the home directory of who reads it."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

HomePath = Annotated[Path, AfterValidator(Path.expanduser)]
