"""`slipstream lab`: a stored batch of a run under every loss of the catalogue."""

import argparse
import json
import os
import sys
from pathlib import Path

from slipstream.cli import samples, subcommand


def add_lab(commands: subcommand.Subcommands) -> None:
    """Add the command to the parser."""
    lab = subcommand.add_subcommand(commands, "lab", _lab, "compare all losses on a stored batch of a run")
    subcommand.add_run_dir(lab)
    lab.add_argument(
        "--step", type=int, metavar="N", help="the step whose batch is compared; default: the last"
    )
    lab.add_argument(
        "--output", type=Path, metavar="FILE", help="the picture; default: plots/lab-N.png of the run"
    )
    lab.add_argument(
        "--candidates", nargs="+", default=[], metavar="NAME", help="compare these losses only; default: all"
    )
    lab.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="an objective of your own to compare, too; may be repeated",
    )
    lab.add_argument(
        "--weights",
        action=argparse.BooleanOptionalAction,
        help="load a checkpoint from before the step; default: if there is one of at most 1 GiB",
    )
    lab.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="time for what needs the weights, after which no further loss is begun; default: 120",
    )
    lab.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the weights are loaded; default: cpu"
    )
    lab.add_argument("--json", action="store_true", help="everything but the picture, as one JSON object")


def _lab(arguments: argparse.Namespace) -> int:
    """Execute the lab, which imports torch, in this process."""
    samples.require_extras("duckdb", "pyarrow", "torch", "matplotlib")
    from slipstream.cli.launch.stored_run import with_rows

    options = {
        "run_dir": str(with_rows(arguments.run_dir).path),
        "step": arguments.step,
        "output": None if arguments.output is None else str(arguments.output),
        "json": arguments.json,
        "candidates": arguments.candidates,
        "objectives": arguments.objective,
        "weights": arguments.weights,
        "seconds": arguments.seconds,
        "device": arguments.device,
    }
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "slipstream.lab.report", json.dumps(options)])
