"""One subcommand of the command line."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The subcommands of a parser; argparse has no public name for the type."""

NEWEST_RUN = Path("runs/latest")
"""The run of a command that is started in the folder of runs_dir, by default."""


def add_subcommand(
    commands: Subcommands,
    name: str,
    function: Callable[[argparse.Namespace], int] | None,
    help: str,
    *,
    details: str = "",
) -> argparse.ArgumentParser:
    """Return a new parser below `commands`, which calls `function`.

    `help` is its line in the list of commands. As a sentence, with `details` appended, it is the description.
    `function`: None for a command that has subcommands of its own.
    """
    parser = commands.add_parser(name, help=help, description=f"{help[:1].upper()}{help[1:]}{details}.")
    if function is not None:
        parser.set_defaults(command=function)
    return parser


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN_DIR, the newest run by default."""
    parser.add_argument(
        "run_dir", nargs="?", type=Path, default=NEWEST_RUN, metavar="RUN_DIR", help=f"default: {NEWEST_RUN}"
    )
