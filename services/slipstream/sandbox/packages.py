"""Packages that programs may import: a folder with links to installed ones and to what they require.

A program can read these and nothing else of the folder where the verifier's own packages are.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
OPTIONAL = re.compile(r";.*\bextra\b")


class PackageMissing(ValueError):
    """A package for programs is not installed where the verifier runs, or cannot be imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """Installed packages."""

    entries: Sequence[Path] = ()
    """Files and folders of which they consist."""
    modules: Sequence[str] = ()
    """What a server imports before there is a program."""

    def link_into(self, folder: str) -> None:
        """Make a folder of modules out of an empty one."""
        for entry in self.entries:
            os.symlink(entry, os.path.join(folder, entry.name))
        os.chmod(folder, 0o755)


def find(names: Sequence[str]) -> Packages:
    """Installed distributions, and those that they require and that are installed. Errors: PackageMissing."""
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
                    f"verifier.isolation.packages: {name} is not installed where the verifier runs; "
                    "install it, or leave it out"
                ) from error
            continue  # what is required on another system only
        for entry in _entries(installed):
            entries[entry.name] = entry
            modules += [entry.stem] if name in names and _is_module(entry) else []
        wanted += _required(installed)
    return Packages(entries=list(entries.values()), modules=modules)


def _entries(installed: Distribution) -> Iterator[Path]:
    """Files and folders of a distribution where modules are looked for."""
    first = {file.parts[0] for file in installed.files or ()}
    for name in sorted(first - {"..", "__pycache__"}):
        path = Path(os.path.realpath(str(installed.locate_file(name))))
        if path.exists():
            yield path


def _is_module(entry: Path) -> bool:
    """Whether it is a package or a module by its own name; not one that its siblings use."""
    return not entry.name.startswith("_") and (entry.suffix == ".py" or (entry / "__init__.py").is_file())


def _required(installed: Distribution) -> list[str]:
    lines = [line for line in installed.requires or () if not OPTIONAL.search(line)]
    return [found[0] for found in map(REQUIREMENT.match, lines) if found]
