"""Packages that programs may import: a folder of links to installed packages and their requirements.

A program can read these packages, and no other package of the folder where they are installed.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
OPTIONAL = re.compile(r";.*\bextra\b")


class PackageMissing(ValueError):
    """A package for programs is not installed, or cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Installed packages that programs may import."""

    entries: Sequence[Path] = ()
    """The files and folders of the packages."""
    modules: Sequence[str] = ()
    """The modules that a fork server imports at its start."""

    def link_into(self, folder: str) -> None:
        """Fill an empty folder with links to the packages."""
        for entry in self.entries:
            os.symlink(entry, os.path.join(folder, entry.name))
        os.chmod(folder, 0o755)


def find(names: Sequence[str]) -> Packages:
    """Find installed distributions, and the installed ones that they require. Errors: PackageMissing."""
    wanted = list(names)
    entries: dict[str, Path] = {}
    modules: list[str] = []
    seen: set[str] = set()
    while wanted:
        name = wanted.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            installed = distribution(name)
        except PackageNotFoundError as error:
            if name in names:
                raise PackageMissing(
                    f"{name} is not installed in {sys.prefix}; install it there, or leave it out"
                ) from error
            continue  # a requirement of another operating system
        for entry in _entries(installed):
            entries[entry.name] = entry
            modules += [entry.stem] if name in names and _is_module(entry) else []
        wanted += _required(installed)
    return Packages(entries=list(entries.values()), modules=modules)


def _entries(installed: Distribution) -> Iterator[Path]:
    """Yield the files and folders of a distribution at the top of site-packages."""
    first = {file.parts[0] for file in installed.files or ()}
    for name in sorted(first - {"..", "__pycache__"}):
        path = Path(os.path.realpath(str(installed.locate_file(name))))
        if path.exists():
            yield path


def _is_module(entry: Path) -> bool:
    """Return whether the entry is a public package or module."""
    return not entry.name.startswith("_") and (entry.suffix == ".py" or (entry / "__init__.py").is_file())


def _required(installed: Distribution) -> list[str]:
    lines = [line for line in installed.requires or () if not OPTIONAL.search(line)]
    return [match[0] for match in map(REQUIREMENT.match, lines) if match]
