"""`slipstream control`: pause, resume and checkpoint a run that is going on on this machine."""

import argparse
import asyncio
import getpass
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from slipstream.cli.errors import CommandError
from slipstream.cli.subcommand import Subcommands, add_run_dir, add_subcommand

if TYPE_CHECKING:
    from slipstream.cli.launch.running import RunningRun
    from slipstream.rpc.control import AdmissionChange

Command = Callable[["RunningRun", argparse.Namespace], str]


def add_control(commands: Subcommands) -> None:
    """Add the command `control` and its subcommands to the parser, without slow imports."""
    text = "pause, resume and checkpoint a run that is going on on this machine"
    own = add_subcommand(commands, "control", None, text).add_subparsers(required=True, metavar="COMMAND")
    pause = _add(own, "pause", _pause, "begin no further groups; the processes stay, and so do their GPUs")
    pause.add_argument("--reason", default="", metavar="TEXT", help="why, for those who look at the run")
    _add(own, "resume", _resume, "end the pause")
    checkpoint = _add(own, "checkpoint", _checkpoint, "write a checkpoint after the running step")
    checkpoint.add_argument(
        "--wait", type=float, default=600.0, metavar="SECONDS", help="longest wait for it; default: 600"
    )


def _add(commands: Subcommands, name: str, command: Command, help: str) -> argparse.ArgumentParser:
    parser = add_subcommand(commands, name, _control, help)
    add_run_dir(parser)
    parser.set_defaults(control_command=command)
    return parser


def _control(arguments: argparse.Namespace) -> int:
    """Execute a subcommand. Errors: CommandError."""
    from slipstream.cli.launch.running import find_running
    from slipstream.rpc.control import ControlFailed

    command: Command = arguments.control_command
    try:
        print(command(find_running(arguments.run_dir), arguments))
    except ControlFailed as error:
        raise CommandError(f"control: {error}") from error
    return 0


def _pause(run: "RunningRun", arguments: argparse.Namespace) -> str:
    change = _set_admission(run, paused=True, reason=arguments.reason)
    if change.changed:
        return (
            "paused: no further group begins; the learner trains on what is finished, and waits for "
            "`slipstream control resume`"
        )
    state = change.admission
    why = f", because: {state.reason}" if state.reason else ""
    return f"was paused already, {state.seconds or 0:.0f} s ago by {state.by}{why}"


def _resume(run: "RunningRun", arguments: argparse.Namespace) -> str:
    change = _set_admission(run, paused=False, reason="")
    return "resumed" if change.changed else "was not paused"


def _checkpoint(run: "RunningRun", arguments: argparse.Namespace) -> str:
    from slipstream.rpc.control import save_checkpoint

    version = asyncio.run(save_checkpoint(run.learner_address, run.rpc, wait_seconds=arguments.wait))
    return f"the checkpoint of step {version} is durable: {run.directory.checkpoint(version)}"


def _set_admission(run: "RunningRun", *, paused: bool, reason: str) -> "AdmissionChange":
    from slipstream.rpc.control import set_admission

    return asyncio.run(
        set_admission(run.replay_address, run.rpc, paused=paused, by=_operator(), reason=reason)
    )


def _operator() -> str:
    """Return user and host of this process; a container may have no name for its user."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
