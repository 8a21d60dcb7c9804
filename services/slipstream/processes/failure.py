"""Why a child process that was to report something has not."""

import subprocess


def why_failed(error: Exception) -> str:
    """Return one line about an error of `subprocess.run`, or of reading what the child process wrote.

    It is the last line that the child wrote to its standard error, where the caller has captured one.
    """
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took more than {error.timeout:g} s"
    written = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    lines = str(written or error).strip().splitlines() or [type(error).__name__]
    return lines[-1]
