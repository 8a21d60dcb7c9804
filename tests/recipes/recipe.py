"""A recipe of CONTRIBUTING.md: its text, and its patch applied to a copy of the repository."""

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
    """The files that a section of the guide says to edit, and the commands that it says to run."""

    name: str
    files: tuple[str, ...]
    commands: str
    patch: Path

    @classmethod
    def read(cls, title: str) -> Self:
        """The recipe below a heading `### {title}`, with the patch of the same name."""
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
        """The files that the patch changes or creates."""
        return set(re.findall(r"^\+\+\+ b/(\S+)", self.patch.read_text(encoding="utf-8"), re.MULTILINE))

    @property
    def extended_files(self) -> set[str]:
        """The files in which the patch adds a line; the others only lose lines."""
        patches = re.split(r"^diff ", self.patch.read_text(encoding="utf-8"), flags=re.MULTILINE)
        added = (part for part in patches if re.search(r"^\+(?!\+\+ )", part, re.MULTILINE))
        return {name for part in added for name in re.findall(r"^\+\+\+ b/(\S+)", part, re.MULTILINE)}

    def carry_out(self, folder: Path, *, without: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Apply the patch to a copy in `folder`, but for the file `without`; run the commands there."""
        copy_repository(folder)
        excluded = () if without is None else (f"--exclude={without}",)
        run(["git", "apply", "-C1", *excluded, str(self.patch)], folder).check_returncode()
        return run(["bash", "-e", "-c", self.commands.replace("make ", MAKE)], folder)


MAKE = "make --assume-old=.venv/.ready "
"""The copy's environment is that of the repository, so make must not install it anew."""


def titles() -> list[str]:
    """The headings of the recipes, in the order of the guide."""
    return re.findall(r"^### (.+)$", section(GUIDE.read_text(encoding="utf-8"), "Recipes"), re.MULTILINE)


def copy_repository(folder: Path) -> None:
    """Copy what recipes touch, read or test; `.venv` leads to the environment that runs this."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=IGNORED)
        else:
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))


def run(command: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in the copy, with the sources of the copy before those that are installed."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "services"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
