"""Make an environment once, as an actor does: `python -m slipstream.actor.try_environment SECTION`.

SECTION is `data.environment` of a run in JSON. The last line of the standard output is the problem in JSON,
or null. What the user's module prints goes to standard error.
"""

import contextlib
import json
import sys
from dataclasses import asdict

from pydantic import TypeAdapter

from slipstream.actor.own_environment import EnvironmentUnusable, make_environment
from slipstream.config.data import EnvironmentConfig


def main(section: str) -> int:
    """Print why the environment of a section cannot be made; return the exit status."""
    problem = None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            make_environment(TypeAdapter(EnvironmentConfig).validate_json(section))
        except EnvironmentUnusable as error:
            problem = asdict(error.problem)
    print(json.dumps(problem))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
