"""The command of a program: its placeholders, and whether what it names exists."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from slipstream.config import environments, problem

KEY: Final = "data.environment.command"


class ProgramMissing(ValueError):
    """The executable of a command does not exist, or may not be executed."""


def resolved(command: Sequence[str], *, prompt: str, run_folder: Path, path: str | None = None) -> list[str]:
    """Return a command with its placeholders replaced, and the executable as an absolute path.

    `path`: folders in which the executable is looked for, as in PATH; None for the PATH of this process.
    Errors: ProgramMissing.
    """
    places = {"{python}": sys.executable, "{run_folder}": str(run_folder), "{prompt}": prompt}
    first, *arguments = [_replaced(argument, places) for argument in command]
    name = str(run_folder / first) if os.sep in first else first
    executable = shutil.which(name, path=path)
    if executable is None:
        where = name if os.sep in first else f"{first} on the PATH"
        raise ProgramMissing(f"there is no executable file {where}")
    return [os.path.abspath(executable), *arguments]


def _replaced(argument: str, places: Mapping[str, str]) -> str:
    """Replace the placeholders of an argument, in one pass: a prompt that spells one stays as it is."""
    for name, value in places.items():
        before, found_name, behind = argument.partition(name)
        if found_name:
            return _replaced(before, places) + value + _replaced(behind, places)
    return argument


def missing_program(config: environments.ProgramEnvironment, run_folder: Path) -> problem.Problem | None:
    """Return the problem of a command whose executable, or file below `{run_folder}`, does not exist."""
    remedy = "correct the path; {run_folder} is the folder from which the run is started"
    try:
        command = resolved(config.command, prompt="", run_folder=run_folder, path=config.env.get("PATH"))
    except ProgramMissing as error:
        return problem.Problem(key=KEY, reason=str(error), remedy=remedy)
    for written, argument in zip(config.command[1:], command[1:], strict=True):
        if written.startswith("{run_folder}/") and not Path(argument).exists():
            return problem.Problem(key=KEY, reason=f"{written}: there is no {argument}", remedy=remedy)
    return None
