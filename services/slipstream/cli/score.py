"""`slipstream score`: scores a user's own data with the rewards of the verifier."""

import argparse
import json
import os
import sys
from pathlib import Path

from slipstream.cli.subcommand import Subcommands, add_subcommand


def add_score(commands: Subcommands) -> None:
    """Add the command to the parser."""
    score = add_subcommand(commands, "score", _score, "score completions in a file of your own")
    score.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="rows of prompt, answer and completion(s): .jsonl, .jsonl.gz, .parquet, or - for standard input",
    )
    score.add_argument(
        "--reward",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="a reward to score with; docs/rewards.md lists the kinds",
    )
    score.add_argument("--config", type=Path, metavar="RUN", help="YAML file of a run, for its rewards")
    score.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="set an argument of a reward, such as rewards.0.pattern=.*",
    )
    score.add_argument(
        "--column",
        nargs="+",
        action="extend",
        default=[],
        metavar="USE=NAME",
        help="name of the column for prompt, answer (the ground truth), completion, tokens or id",
    )
    score.add_argument("--output", type=Path, metavar="FILE", help="file for the scores; default: stdout")


def _score(arguments: argparse.Namespace) -> int:
    """Execute the verifier's scorer in this process."""
    options = {
        "file": str(arguments.file),
        "rewards": arguments.reward,
        "config": None if arguments.config is None else str(arguments.config),
        "set": arguments.set,
        "columns": arguments.column,
        "output": None if arguments.output is None else str(arguments.output),
    }
    sys.stdout.flush()
    command = [sys.executable, "-m", "slipstream.verifier.score", json.dumps(options)]
    os.execv(sys.executable, command)  # so that the scorer itself handles Ctrl-C and a closed pipe
