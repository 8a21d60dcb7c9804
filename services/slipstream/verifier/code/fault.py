"""Why a run of a program fails its test: late, killed, memory, threads, disk, output, crashed or wrong.

The texts go into logs and files. The only part that the program can choose is the name of an exception.
"""

import re
import signal

from slipstream.sandbox.job import RunResult

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
LIMITS = {
    "late": "late: no end before its deadline",
    "output": "output: more than it may write",
    "disk": "disk: more scratch files than it may have",
    "threads": "threads: more than it may have",
}
"""End of a run → the text about the limit that it exceeded."""
OUT_OF_MEMORY = "MemoryError"


def fault_of(ran: RunResult) -> str:
    """Return why a run failed; an empty text if the program ended by itself with the status 0."""
    if ran.end in LIMITS:
        return LIMITS[ran.end]
    if ran.end == "killed":
        return f"killed: {_signal(ran.status)}"
    if ran.status == 0:
        return ""
    name = ran.error if NAME.fullmatch(ran.error) else ""
    if name == OUT_OF_MEMORY:
        return "memory: MemoryError"
    return f"crashed: {name or f'exit status {ran.status}'}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
