"""`slipstream probe`: ask running services whether they work, over the channels that the pods use."""

import argparse
import asyncio
from pathlib import Path

from slipstream.cli.sentence import sentence

TARGETS = {
    "replay": "replay is healthy, and Redis behind it answers with a ledger that closes",
    "verifier": "the verifier is healthy",
    "learner": "the learner is healthy, and says its policy version",
    "circle": "a prompt can be leased, scored and given back, which leaves the run as it was",
}
DEADLINE_SECONDS = 60.0


def add_probe(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `probe`. Imports nothing heavy."""
    text = "ask running services whether they work"
    probe = commands.add_parser(
        "probe",
        help=text,
        description=sentence(f"{text}; one line a check. Exit status 1 when one fails"),
        epilog="; ".join(f"{name}: {meaning}" for name, meaning in TARGETS.items()) + ".",
    )
    probe.add_argument("target", choices=TARGETS, help="what to ask")
    probe.add_argument(
        "--config",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="YAML of the run; repeatable",
    )
    probe.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace one key, dotted"
    )
    probe.add_argument(
        "--deadline",
        type=_positive,
        default=DEADLINE_SECONDS,
        metavar="SECONDS",
        help="for all checks; until then what fails is tried again (default: %(default)g)",
    )
    probe.set_defaults(command=probe_command)


def probe_command(arguments: argparse.Namespace) -> int:
    """Run the checks of a target; returns the exit status. Errors: ConfigError."""
    from slipstream.cli.clusters.probe_checks import run_probe
    from slipstream.config import apply_environment, load_config

    config = apply_environment(load_config(arguments.config, arguments.set))
    passed = asyncio.run(run_probe(arguments.target, config, deadline_seconds=arguments.deadline))
    return 0 if passed else 1


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds
