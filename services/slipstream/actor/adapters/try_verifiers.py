"""Makes a verifiers environment once, in its own Python, to find out whether actors can make it."""

import json
import shutil
import subprocess
from typing import Final

from slipstream.actor.adapters import local_server, verifiers_process
from slipstream.config import problem, verifiers
from slipstream.processes.failure import why_failed

KEY: Final = "data.environment"
VERSION: Final = "0.4.0"
"""The version of verifiers that the tests run with."""


def verifiers_problem(environment: verifiers.VerifiersEnvironment) -> problem.Problem | None:
    """Return why an environment cannot be made; None if it can be."""
    install = f"{environment.python} -m pip install verifiers=={VERSION}"
    if shutil.which(environment.python) is None:
        return problem.Problem(
            key=f"{KEY}.python",
            reason=f"there is no program {environment.python!r}",
            remedy="name the Python of a virtual environment in which verifiers is installed",
        )
    reason = _tried(environment)
    if reason is None:
        return None
    if "No module named 'verifiers'" in reason:
        return problem.Problem(
            key=f"{KEY}.python", reason=f"{environment.python} has no verifiers", remedy=install
        )
    return problem.Problem(
        key=f"{KEY}.arguments",
        reason=reason,
        remedy="correct them, or install the package of the environment in that Python",
    )


def _tried(environment: verifiers.VerifiersEnvironment) -> str | None:
    command = [environment.python, str(verifiers_process.RUNNER), "check", json.dumps(environment.arguments)]
    try:
        done = subprocess.run(
            command,
            env=local_server.child_environment(environment.env),
            capture_output=True,
            text=True,
            timeout=environment.start_seconds,
            check=True,
        )
        reason: str | None = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"the process that made it ended: {why_failed(error)}"
    return reason
