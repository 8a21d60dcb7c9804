"""Try an objective or an advantage in a child process, which needs torch; this process does not."""

import subprocess
import sys
from typing import Final

from slipstream.algorithms.trial_report import Report, report_from_json
from slipstream.processes.failure import why_failed

PROGRAM: Final = "slipstream.algorithms.trial"


class TrialFailed(Exception):
    """The process of the trial ended without a report."""


def try_section(
    section: str,
    *,
    axis: str,
    seconds: float | None = None,
    limit: float | None = None,
    quiet: bool = False,
    folder: str | None = None,
) -> Report:
    """Return the report on the function of a section.

    section: the `objective` or `advantage` of a run, as axis says, in JSON.
    seconds: time for the identities; None: all are tested.
    limit: seconds after which the process is killed; None: no limit.
    quiet: whether what the function prints is dropped; else it goes to standard error.
    folder: the working directory, from which modules are imported; None: this process's.
    Errors: TrialFailed if the process fails, or is killed.
    """
    command = [sys.executable, "-m", PROGRAM, axis, section]
    command += [] if seconds is None else [str(seconds)]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            timeout=limit,
            check=True,
        )
        return report_from_json(done.stdout.strip().rpartition("\n")[2])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise TrialFailed(f"the process that called it ended: {why_failed(error)}") from error
