"""Writes the tasks of a verifiers environment as rows of a data file:

    python -m slipstream.actor.adapters.verifiers_rows RUN.yaml --rows 1000 > tasks.jsonl

RUN.yaml names the environment in `data.environment`; its data file need not exist yet.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from slipstream.actor.adapters.local_server import child_environment
from slipstream.actor.adapters.verifiers_process import RUNNER
from slipstream.config import ConfigError, load_config
from slipstream.config.verifiers import VerifiersEnvironment


def main() -> int:
    """Print the rows; return the exit status."""
    parser = argparse.ArgumentParser(prog="verifiers_rows", description=__doc__.partition(":")[0])
    parser.add_argument("run", type=Path, help="the configuration of a run")
    parser.add_argument("--rows", type=int, default=10_000, help="most rows; some tasksets never end")
    arguments = parser.parse_args()
    try:
        environment = load_config(arguments.run).data.environment
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if not isinstance(environment, VerifiersEnvironment):
        print("data.environment is no environment of the kind `verifiers`", file=sys.stderr)
        return 2
    command = [
        environment.python,
        str(RUNNER),
        "rows",
        json.dumps(environment.arguments),
        str(arguments.rows),
    ]
    try:
        return subprocess.run(command, env=child_environment(environment.env), check=False).returncode
    except OSError as error:
        print(f"data.environment.python: {environment.python} cannot be started: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
