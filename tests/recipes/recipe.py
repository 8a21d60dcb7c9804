"""Read a recipe of CONTRIBUTING.md, and apply its patch to a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from docs.markdown import section

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent
GUIDE = ROOT / "CONTRIBUTING.md"
COPIED = (
    *("services", "tests", "docs", "charts", "deploy", "benchmarks", "proto", "examples", "docker"),
    *("Makefile", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
)
IGNORED = shutil.ignore_patterns("__pycache__", "node_modules", "*.egg-info")
SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The files to edit and the commands to run, by a section of CONTRIBUTING.md."""

    name: str
    files: tuple[str, ...]
    commands: str
    patch: Path

    @classmethod
    def read(cls, title: str) -> Self:
        """Return the recipe below the heading `### {title}`, with the patch of the same name."""
        text = section(section(GUIDE.read_text(encoding="utf-8"), "Recipes"), title)
        (commands,) = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        return cls(
            name=title,
            files=tuple(re.findall(r"^\d+\. `([^`]+)`: \S", text, re.MULTILINE)),
            commands=commands,
            patch=FOLDER / f"{title.lower().replace(' ', '_')}.patch",
        )

    @property
    def patched_files(self) -> set[str]:
        """Return the files that the patch changes or creates."""
        return set(re.findall(r"^\+\+\+ b/(\S+)", self.patch.read_text(encoding="utf-8"), re.MULTILINE))

    @property
    def extended_files(self) -> set[str]:
        """Return the files in which the patch adds a line; in other files it only removes lines."""
        patches = re.split(r"^diff ", self.patch.read_text(encoding="utf-8"), flags=re.MULTILINE)
        added = (part for part in patches if re.search(r"^\+(?!\+\+ )", part, re.MULTILINE))
        return {name for part in added for name in re.findall(r"^\+\+\+ b/(\S+)", part, re.MULTILINE)}

    def carry_out(self, folder: Path, *, without: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Patch a copy in `folder`, except for the file `without`, and run the commands there."""
        copy_repository(folder)
        excluded = () if without is None else (f"--exclude={without}",)
        run(["git", "apply", "-C1", *excluded, str(self.patch)], folder).check_returncode()
        return run(["bash", "-e", "-c", self.commands.replace("make ", MAKE)], folder)


MAKE = "make --assume-old=.venv/.ready "
"""make must not install packages: the copy uses the environment of the repository."""


def titles() -> list[str]:
    """Return the headings of the recipes, in the order of CONTRIBUTING.md."""
    return re.findall(r"^### (.+)$", section(GUIDE.read_text(encoding="utf-8"), "Recipes"), re.MULTILINE)


def copy_repository(folder: Path) -> None:
    """Copy the files that recipes change, read or test; `.venv` links to the environment of this process."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
        else:
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))


def run(command: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in the copy, with the sources of the copy first on the path of Python.

    Tests that compare times are left out, because other tests run at the same time.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / "services"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_ADDOPTS": "-m 'not alone'",
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
