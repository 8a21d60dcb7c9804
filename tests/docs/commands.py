"""The commands and the YAML of pages: what stands in fenced blocks, one command a line."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.shell_blocks import PROGRAMS, blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docker/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
)
"""The pages with commands. tests/chart checks those of the generated page charts/slipstream/README.md."""
FURTHER_PROGRAMS = ("alias", "bash", "eval", "export", "for", "hf", "pip", "python", "sed", "ssh", "uv")
SHELLS = ("bash", "console", "sh", "shell")
ASSIGNMENT = re.compile(r"^(?:\w+=(?:\$\([^)]*\)|\S)*\s+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a page."""

    page: str
    """Path of the page in the repository."""
    text: str
    """Without comment and without line breaks."""

    @property
    def words(self) -> list[str]:
        """The words up to the first pipe or redirection, without assignments in front."""
        words = shlex.split(self.text)
        ends = [index for index, word in enumerate(words) if word in ("|", ">", "||", "&&")]
        return words[: ends[0]] if ends else words


def commands_of(path: Path) -> list[Command]:
    """Return the commands of the fenced blocks of a page."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    scripts = [block for block in blocks(text, "") if is_script(block)]
    scripts += [block for shell in SHELLS for block in blocks(text, shell)]
    return [Command(page=name, text=line) for script in scripts for line in lines_of(script)]


def is_script(block: str) -> bool:
    """Return whether a block without a language has commands: it begins with a program that pages call."""
    first = ASSIGNMENT.sub("", block.lstrip().removeprefix("$ ")).split()
    programs = (*PROGRAMS, *FURTHER_PROGRAMS)
    return bool(first) and (first[0] in programs or first[0].startswith(".venv/bin/"))


def lines_of(script: str) -> Iterator[str]:
    """Yield the commands of a script, with continued lines joined, without comments and output."""
    shows_output = any(line.startswith("$ ") for line in script.splitlines())
    for line in joined(script):
        if shows_output and not line.startswith("$ "):
            continue
        command = " ".join(without_comment(line.removeprefix("$ ")).split())
        if command and is_script(command):
            yield command


def joined(script: str) -> list[str]:
    """Return the lines of a script; a line goes on after a backslash, and inside of a quotation."""
    lines: list[str] = []
    for line in script.replace("\\\n", " ").splitlines():
        if lines and lines[-1].count("'") % 2:
            lines[-1] += " " + line
        else:
            lines.append(line)
    return lines


def without_comment(line: str) -> str:
    """Return a line without the comment at its end."""
    return re.sub(r"(^|\s)#\s.*$", "", line)


def yaml_blocks(path: Path) -> list[str]:
    """Return the YAML of a page."""
    return blocks(path.read_text(encoding="utf-8"), "yaml")
