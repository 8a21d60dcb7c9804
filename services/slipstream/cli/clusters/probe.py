"""`slipstream probe`: ask running services whether they work, and measure the network between two pods."""

import argparse
import asyncio
import importlib.util
from pathlib import Path

from slipstream.cli.errors import UsageError
from slipstream.cli.subcommand import Subcommands, add_subcommand

TARGETS = {
    "replay": "replay is healthy, and Redis behind it answers with a ledger that closes",
    "verifier": "the verifier is healthy",
    "teacher": "the teacher is healthy",
    "learner": "the learner is healthy, and says its policy version",
    "circle": "a prompt can be leased, scored and given back, which leaves the run as it was",
}
DEADLINE_SECONDS = 60.0
MIB = 512
ROUNDS = 5


def add_probe(commands: Subcommands) -> None:
    """Add the command `probe`. Imports nothing heavy."""
    text = "ask running services whether they work, or measure the bandwidth between two pods"
    details = "; one line a check. Exit status 1 when one fails"
    probe = add_subcommand(commands, "probe", None, text, details=details)
    targets = probe.add_subparsers(required=True, metavar="TARGET", dest="target")
    for target, meaning in TARGETS.items():
        service = add_subcommand(targets, target, probe_command, meaning)
        _add_config(service)
        _add_deadline(service, "for all checks; until then what fails is tried again")
    _add_send_weights(targets)
    _add_receive_weights(targets)


def probe_command(arguments: argparse.Namespace) -> int:
    """Run the checks of a target; returns the exit status. Errors: ConfigError."""
    from slipstream.cli.clusters.probe_checks import run_probe
    from slipstream.config import apply_environment, load_config

    config = apply_environment(load_config(arguments.config, arguments.set))
    passed = asyncio.run(run_probe(arguments.target, config, deadline_seconds=arguments.deadline))
    return 0 if passed else 1


def send_weights_command(arguments: argparse.Namespace) -> int:
    """Measure as the sender. Errors: ConfigError, CommandError."""
    _require_torch()
    from slipstream.cli.clusters.probe_weights import send_weights
    from slipstream.config import apply_environment, load_config

    send_weights(
        apply_environment(load_config(arguments.config, arguments.set)),
        mib=arguments.mib,
        rounds=arguments.rounds,
        deadline_seconds=arguments.deadline,
        cpu=arguments.cpu,
    )
    return 0


def receive_weights_command(arguments: argparse.Namespace) -> int:
    """Measure as the receiver. Errors: ValueError, CommandError."""
    _require_torch()
    from slipstream.cli.clusters.probe_weights import receive_weights

    receive_weights(arguments.ticket)
    return 0


def _add_send_weights(targets: Subcommands) -> None:
    text = "measure the bandwidth to another pod, as the learner that sends weights"
    details = ". It prints the command for the other pod, and waits for it"
    send = add_subcommand(targets, "send-weights", send_weights_command, text, details=details)
    _add_config(send)
    _add_deadline(send, "for the other pod to come; weights.timeout_seconds bounds each wait after that")
    send.add_argument(
        "--mib", type=_count, default=MIB, metavar="N", help="sent in each round (default: %(default)s)"
    )
    send.add_argument(
        "--rounds",
        type=_count,
        default=ROUNDS,
        metavar="N",
        help="after one to warm up (default: %(default)s)",
    )
    send.add_argument(
        "--cpu", action="store_true", help="gloo from the hosts' memory, also where there is a GPU"
    )


def _add_receive_weights(targets: Subcommands) -> None:
    text = "the other end of that, in a rollout's pod"
    receive = add_subcommand(targets, "receive-weights", receive_weights_command, text)
    receive.add_argument("ticket", metavar="TICKET", help="what `slipstream probe send-weights` has printed")


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="YAML of the run; repeatable",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="replace one key, dotted"
    )


def _add_deadline(parser: argparse.ArgumentParser, of: str) -> None:
    parser.add_argument(
        "--deadline",
        type=_positive,
        default=DEADLINE_SECONDS,
        metavar="SECONDS",
        help=f"{of} (default: %(default)g)",
    )


def _require_torch() -> None:
    """Errors: UsageError."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "weights are sent with torch, which this environment does not have; measure from a pod of the "
            "learner to a pod of a rollout"
        )


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return seconds


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number
