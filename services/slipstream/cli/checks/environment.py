"""Check that actors can make the user's own environment, in a child process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from slipstream.config import RunConfig
from slipstream.config.data import CustomEnvironment
from slipstream.config.problem import Problem

PROGRAM: Final = "slipstream.actor.try_environment"
LIMIT_SECONDS: Final = 120.0
"""Time for the imports of the user's modules."""
KEY: Final = "data.environment.function"


def check_environment(config: RunConfig) -> Iterator[Problem]:
    """Yield the problem of an environment of the kind `custom` that cannot be made."""
    environment = config.data.environment
    if isinstance(environment, CustomEnvironment):
        yield from _tried(environment.model_dump_json(), str(Path.cwd()))


@lru_cache(maxsize=8)
def _tried(section: str, folder: str) -> tuple[Problem, ...]:
    """Return what the child process says; stages of a run often have the same environment."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM, section],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        last = str(getattr(error, "stderr", None) or error).strip().rpartition("\n")[2]
        reason = f"cannot be used: the process that made it ended: {last}"
        return (Problem(key=KEY, reason=reason, remedy="correct its module"),)
    problem = json.loads(done.stdout.strip().rpartition("\n")[2])
    return (Problem(**problem),) if problem else ()
