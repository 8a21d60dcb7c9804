"""The first exception in the output of a failed process.

An engine runs in processes of its own, and a log ends with what its failure did to the others: vLLM says
«Engine core initialization failed. See root cause above» some hundred lines after the cause.
"""

import re
from collections.abc import Iterable

LONGEST = 600
"""Characters that are shown of it."""
_EXCEPTION = re.compile(
    r"^(?:\([^)]*\) )?"  # (EngineCore pid=17425)
    r"(?:ERROR \S+ \S+ \[[^\]]*\] )?"  # ERROR 11-22 17:17:15 [core.py:1510]
    r"(?P<error>(?:\w+\.)*[A-Z]\w*(?:Error|Exception): \S.*)$"
)


def first_error(lines: Iterable[str]) -> str | None:
    """The exception as Python writes it, type and message; None where there is none."""
    found = next((match["error"] for line in lines if (match := _EXCEPTION.match(line.rstrip()))), None)
    return None if found is None else found[:LONGEST]
