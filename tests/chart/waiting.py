"""Waiting for what pods that run do."""

import time
from collections.abc import Callable

START_SECONDS, STEP_SECONDS = 300.0, 120.0
"""Longest start of a release, and longest wait for anything after it."""


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Errors: AssertionError when it does not come true in time; a page that is not there yet is no."""
    deadline, last = time.monotonic() + STEP_SECONDS, ""
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (OSError, KeyError) as error:
            last = f" ({error})"
        time.sleep(0.2)
    raise AssertionError(f"no {what} within {STEP_SECONDS:g} s{last}")
