"""`slipstream console`: a run in the browser."""

import argparse
import os
import sys
from pathlib import Path

from slipstream.cli import samples, subcommand

DEFAULT_PORT = 8600


def add_console(commands: subcommand.Subcommands) -> None:
    """Add the command to the parser."""
    console = subcommand.add_subcommand(
        commands, "console", _console, "show a run, and those beside it, in the browser"
    )
    subcommand.add_run_dir(console)
    console.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help=f"0 takes a free one; default: {DEFAULT_PORT}"
    )
    console.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    console.add_argument(
        "--host-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name under which browsers reach it, beside localhost; may be repeated",
    )
    console.add_argument(
        "--token-file", type=Path, metavar="FILE", help="secret of visitors; needed beyond loopback"
    )
    console.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="an objective of your own that the page's loss lab may compare; may be repeated",
    )


def _console(arguments: argparse.Namespace) -> int:
    """Execute the console in this process."""
    samples.require_extras("fastapi", "uvicorn", "duckdb", "pyarrow")
    command = [sys.executable, "-m", "slipstream.console", str(arguments.run_dir)]
    command += ["--host", arguments.host, "--port", str(arguments.port)]
    command += [option for name in arguments.host_name for option in ("--host-name", name)]
    command += [option for name in arguments.objective for option in ("--objective", name)]
    command += ["--token-file", str(arguments.token_file)] if arguments.token_file else []
    sys.stdout.flush()
    os.execv(sys.executable, command)
