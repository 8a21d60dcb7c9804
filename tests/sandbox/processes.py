"""The descendants of a process, for tests that inspect or kill them."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants of a process."""
    below = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text(encoding="ascii").split()):
                below += [child, *descendants(child)]
    return below


async def stable_descendants() -> list[int]:
    """Wait until the descendants of this process stay the same, and return them.

    By then the supervisors of finished programs have ended.
    """
    before: list[int] = []
    while before != (now := descendants(os.getpid())) or not now:
        before = now
        await asyncio.sleep(0.1)
    return before
