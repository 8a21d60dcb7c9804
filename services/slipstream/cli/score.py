"""`slipstream score`: scores of a user's own data, by the rewards of the verifier."""

import argparse
import json
import subprocess
import sys
from pathlib import Path


def add_score(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    text = "score completions in a file of your own"
    score = commands.add_parser("score", help=text, description=text.capitalize() + ".")
    score.add_argument("file", type=Path, metavar="FILE", help="JSONL: prompt, answer, completion(s)")
    score.add_argument("--reward", nargs="+", action="extend", default=[], metavar="NAME", help="by which")
    score.add_argument("--config", type=Path, metavar="RUN", help="YAML file of a run, for its rewards")
    score.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as rewards.0.pattern=.*"
    )
    score.add_argument(
        "--column",
        nargs="+",
        action="extend",
        default=[],
        metavar="USE=NAME",
        help="name of the column for prompt, answer (the ground truth), completion, tokens or id",
    )
    score.add_argument("--output", type=Path, metavar="FILE", help="where the scores go; default: stdout")
    score.set_defaults(command=_score)


def _score(arguments: argparse.Namespace) -> int:
    """In a process of its own: the rewards are the verifier's."""
    options = {
        "file": str(arguments.file),
        "rewards": arguments.reward,
        "config": None if arguments.config is None else str(arguments.config),
        "set": arguments.set,
        "columns": arguments.column,
        "output": None if arguments.output is None else str(arguments.output),
    }
    return subprocess.call([sys.executable, "-m", "slipstream.verifier.score", json.dumps(options)])
