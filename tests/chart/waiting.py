"""Wait for events of running pods."""

import time
from collections.abc import Callable

START_SECONDS, STEP_SECONDS = 300.0, 120.0
"""The limit of the start of a release, and of any later wait."""


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition; an unreachable page counts as false. Errors: AssertionError at the limit."""
    deadline, last = time.monotonic() + STEP_SECONDS, ""
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (OSError, KeyError) as error:
            last = f" ({error})"
        time.sleep(0.2)
    raise AssertionError(f"no {what} within {STEP_SECONDS:g} s{last}")
