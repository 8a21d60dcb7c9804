"""`slipstream probe`: checks running services, and measures the network between two pods."""

import argparse
import asyncio
import importlib.util
from pathlib import Path

from slipstream.cli.errors import UsageError
from slipstream.cli.subcommand import Subcommands, add_subcommand

TARGETS = {
    "replay": "replay is healthy, and its Redis returns a ledger with residual 0",
    "verifier": "the verifier is healthy",
    "teacher": "the teacher is healthy",
    "learner": "the learner is healthy, and returns its policy version",
    "circle": "a prompt can be leased, scored and returned, which does not change the run",
}
DEADLINE_SECONDS = 60.0
MIB = 512
ROUNDS = 5


def add_probe(commands: Subcommands) -> None:
    """Add the command `probe` to the parser, without slow imports."""
    text = "check running services, or measure the bandwidth between two pods"
    details = "; one line a check. Exit status 1 when one fails"
    probe = add_subcommand(commands, "probe", None, text, details=details)
    targets = probe.add_subparsers(required=True, metavar="TARGET", dest="target")
    for target, meaning in TARGETS.items():
        service = add_subcommand(targets, target, probe_command, meaning)
        _add_config(service)
        _add_deadline(service, "for all checks; a failed check is tried again until then")
    _add_send_weights(targets)
    _add_receive_weights(targets)


def probe_command(arguments: argparse.Namespace) -> int:
    """Run the checks of a target, and return the exit status. Errors: ConfigError."""
    from slipstream.cli.clusters.probe_checks import run_probe
    from slipstream.config import apply_environment, load_config

    config = apply_environment(load_config(arguments.config, arguments.set))
    passed = asyncio.run(run_probe(arguments.target, config, deadline_seconds=arguments.deadline))
    return 0 if passed else 1


def send_weights_command(arguments: argparse.Namespace) -> int:
    """Measure the bandwidth as the sender. Errors: ConfigError, CommandError."""
    _require_torch()
    from slipstream.cli.clusters.probe_weights import send_weights
    from slipstream.config import apply_environment, load_config

    send_weights(
        apply_environment(load_config(arguments.config, arguments.set)).weights,
        mib=arguments.mib,
        rounds=arguments.rounds,
        deadline_seconds=arguments.deadline,
        cpu=arguments.cpu,
    )
    return 0


def receive_weights_command(arguments: argparse.Namespace) -> int:
    """Measure the bandwidth as the receiver. Errors: ValueError, CommandError."""
    _require_torch()
    from slipstream.cli.clusters.probe_weights import receive_weights

    receive_weights(arguments.ticket)
    return 0


def _add_send_weights(targets: Subcommands) -> None:
    text = "measure the bandwidth to another pod, in the role of the learner that sends weights"
    details = ". It prints the command for the other pod, and waits for it"
    send = add_subcommand(targets, "send-weights", send_weights_command, text, details=details)
    _add_config(send)
    _add_deadline(send, "for the other pod to connect; weights.timeout_seconds limits each later wait")
    send.add_argument(
        "--mib", type=_count, default=MIB, metavar="N", help="MiB sent in each round (default: %(default)s)"
    )
    send.add_argument(
        "--rounds",
        type=_count,
        default=ROUNDS,
        metavar="N",
        help="rounds after a warm-up round (default: %(default)s)",
    )
    send.add_argument("--cpu", action="store_true", help="use gloo and host memory, even if there is a GPU")


def _add_receive_weights(targets: Subcommands) -> None:
    text = "receive the weights of `send-weights`, in the role of a rollout"
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
    """Errors: UsageError if torch is not installed."""
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
