"""The first exception in the output of a failed process.

vLLM's engine is a child process. When it fails, the log ends with an error of the parent («Engine core
initialization failed. See root cause above»), some hundred lines after the cause.
"""

import re
from collections.abc import Iterable

LONGEST = 600
"""Most characters of the exception that are shown."""
_EXCEPTION = re.compile(
    r"^(?:\([^)]*\) )?"  # (EngineCore pid=17425)
    r"(?:ERROR \S+ \S+ \[[^\]]*\] )?"  # ERROR 11-22 17:17:15 [core.py:1510]
    r"(?P<error>(?:\w+\.)*[A-Z]\w*(?:Error|Exception): \S.*)$"
)


def first_error(lines: Iterable[str]) -> str | None:
    """Return type and message of the first exception; None if there is none."""
    error = next((match["error"] for line in lines if (match := _EXCEPTION.match(line.rstrip()))), None)
    return None if error is None else error[:LONGEST]
