"""Writes the tasks of a verifiers environment as rows of a data file:

    python -m slipstream.actor.adapters.verifiers_rows RUN.yaml --rows 1000 > tasks.jsonl

RUN.yaml names the environment in `data.environment`, or in a source of a mixture, which `--source` names. Its
data file need not exist yet.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from slipstream.actor.adapters import local_server, verifiers_process
from slipstream.config import ConfigError, RunConfig, load_config, verifiers
from slipstream.config.sources import sources


def main() -> int:
    """Print the rows; return the exit status."""
    parser = argparse.ArgumentParser(prog="verifiers_rows", description=__doc__.partition(":")[0])
    parser.add_argument("run", type=Path, help="the configuration of a run")
    parser.add_argument("--rows", type=int, default=10_000, help="most rows; some tasksets never end")
    parser.add_argument("--source", help="the source of a mixture, if several have such an environment")
    arguments = parser.parse_args()
    try:
        environment = environment_of(load_config(arguments.run), arguments.source)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    command = [
        environment.python,
        str(verifiers_process.RUNNER),
        "rows",
        json.dumps(environment.arguments),
        str(arguments.rows),
    ]
    try:
        return subprocess.run(
            command, env=local_server.child_environment(environment.env), check=False
        ).returncode
    except OSError as error:
        print(f"data.environment.python: {environment.python} cannot be started: {error}", file=sys.stderr)
        return 2


def environment_of(config: RunConfig, name: str | None) -> verifiers.VerifiersEnvironment:
    """Return the environment of a source, or the only one of its kind. Errors: ConfigError."""
    of_kind = {
        source.name: source.environment
        for source in sources(config)
        if isinstance(source.environment, verifiers.VerifiersEnvironment)
    }
    if name is not None and name not in of_kind:
        raise ConfigError(
            f"--source {name}: no source of this name has an environment of the kind `verifiers`"
        )
    if not of_kind:
        raise ConfigError("data.environment is no environment of the kind `verifiers`")
    if name is None and len({environment.model_dump_json() for environment in of_kind.values()}) > 1:
        raise ConfigError(f"several sources have one: name it by --source, one of {', '.join(of_kind)}")
    return of_kind[name] if name else next(iter(of_kind.values()))


if __name__ == "__main__":
    sys.exit(main())
