"""`slipstream cluster`: the options of its commands, and their output."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cli import errors, subcommand

if TYPE_CHECKING:
    from slipstream.cluster.api import Api
    from slipstream.cluster.release import Release

Command = Callable[["Api", "Release", argparse.Namespace], int]
TAIL = 100
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_cluster(commands: subcommand.Subcommands) -> None:
    """Add the command `cluster` and its subcommands to the parser, without slow imports."""
    cluster = subcommand.add_subcommand(commands, "cluster", None, "look after a run on Kubernetes")
    own = cluster.add_subparsers(required=True, metavar="COMMAND")
    status = _add(own, "status", _status, "pods, versions, staleness, ledger and autoscalers")
    status.add_argument("--json", action="store_true", help="everything, as one JSON object")
    scale = _add(own, "scale", _scale, "set the number of rollouts of a pool")
    scale.add_argument(
        "target", metavar="rollout[/POOL]", help="the pool; POOL is needed if there are several"
    )
    scale.add_argument("replicas", metavar="N", help="number of rollouts; `auto` ends an --override")
    scale.add_argument(
        "--override", action="store_true", help="make KEDA keep the number, if KEDA scales the pool"
    )
    logs = _add(own, "logs", _logs, "log lines of all pods, merged")
    logs.add_argument("target", nargs="?", default="", metavar="COMPONENT[/POOL]|POD", help="only these pods")
    logs.add_argument("-f", "--follow", action="store_true", help="print new lines until Ctrl-C")
    logs.add_argument("--since", type=_seconds, metavar="TIME", help="only newer lines, such as 90s, 10m, 2h")
    logs.add_argument(
        "--tail",
        type=int,
        metavar="N",
        help=f"number of last lines of each pod, -1 for all; default: {TAIL}, or all with --since",
    )
    pause = _add(own, "pause", _pause, "stop learner and rollouts, so that their GPUs are free")
    pause.add_argument(
        "--wait",
        type=_patience,
        metavar="SECONDS",
        help="longest wait for the pods to end; default: their grace period, and a minute",
    )
    _add(own, "resume", _resume, "start again what `pause` has stopped")


def _add(commands: subcommand.Subcommands, name: str, command: Command, help: str) -> argparse.ArgumentParser:
    parser = subcommand.add_subcommand(commands, name, _run, help)
    parser.add_argument("--release", metavar="NAME", help="Helm release; default: the only release")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="default: the namespace of the context")
    parser.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig; default: the current one"
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="default: the file that kubectl uses, or the service account of the pod",
    )
    parser.set_defaults(cluster_command=command)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from slipstream.cluster.connect import connect
    from slipstream.cluster.errors import ClusterError, ClusterUsageError

    try:
        connection = connect(
            kubeconfig=arguments.kubeconfig, context=arguments.context, namespace=arguments.namespace
        )
        from slipstream.cluster.api import Api
        from slipstream.cluster.release import find_release

        api = Api(connection)
        command: Command = arguments.cluster_command
        return command(api, find_release(api, arguments.release), arguments)
    except ClusterUsageError as error:
        raise errors.UsageError(f"cluster: {error}") from error
    except ClusterError as error:
        raise errors.CommandError(f"cluster: {error}") from error


def _status(api: "Api", release: "Release", arguments: argparse.Namespace) -> int:
    from slipstream.cli.clusters.table import as_json, table
    from slipstream.cluster.status import read_status

    status = read_status(api, release)
    print(json.dumps(as_json(status), indent=2) if arguments.json else "\n".join(table(status)))
    return 0


def _scale(api: "Api", release: "Release", arguments: argparse.Namespace) -> int:
    from slipstream.cluster.scale import choose_pool, scale, scale_automatically

    choose_pool(release, arguments.target)
    if arguments.replicas == "auto":
        print(scale_automatically(api, release, arguments.target))
    elif arguments.replicas.isdecimal():
        number = int(arguments.replicas)
        print(scale(api, release, arguments.target, number, override=arguments.override))
    else:
        raise errors.UsageError(
            f"cluster: scale to {arguments.replicas}: needs a whole number from 0, or `auto`"
        )
    return 0


def _logs(api: "Api", release: "Release", arguments: argparse.Namespace) -> int:
    from slipstream.cluster.logs import Wanted, choose_pods, follow_logs, read_logs

    tail = arguments.tail if arguments.tail is not None else (-1 if arguments.since else TAIL)
    wanted = Wanted(since_seconds=arguments.since, tail=None if tail < 0 else tail)
    pods = choose_pods(api, release, arguments.target)
    width = max(len(release.short(pod.name)) for pod in pods)
    lines = (
        follow_logs(api, release, pods, wanted, target=arguments.target)
        if arguments.follow
        else read_logs(api, pods, wanted)
    )
    try:
        for line in lines:
            print(f"{release.short(line.pod):<{width}} | {line.text}", flush=arguments.follow)
        sys.stdout.flush()
    except KeyboardInterrupt:
        if not arguments.follow:
            raise
    except BrokenPipeError:
        # The reader closed the pipe. Without this, Python would report the error again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _pause(api: "Api", release: "Release", arguments: argparse.Namespace) -> int:
    from slipstream.cluster.pause import pause

    pause(api, release, say=_say, wait_seconds=arguments.wait)
    return 0


def _resume(api: "Api", release: "Release", arguments: argparse.Namespace) -> int:
    from slipstream.cluster.pause import resume

    resume(api, release, say=_say)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _patience(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: write a number of seconds from 0")
    return seconds


def _seconds(text: str) -> int:
    number, unit = (text[:-1], text[-1]) if text and text[-1] in UNITS else (text, "s")
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text!r}: write a time such as 90s, 10m, 2h or 1d")
    return int(number) * UNITS[unit]
