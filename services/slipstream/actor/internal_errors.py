"""Errors of Slipstream's own code, which would otherwise look like errors of an environment or an agent.

An error in user code withholds the episode, or is shown to the policy as text. The same `except` may catch a
mistake of Slipstream: it is counted and logged here, so that nobody searches for it in the user's code.
"""

from pathlib import Path
from traceback import extract_tb
from typing import Final, Literal, get_args

import slipstream
from slipstream.actor.own_code import described
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

Part = Literal["environment", "endpoint"]
"""Where an error was caught. `endpoint`: in a request of an agent."""
PACKAGE: Final = Path(slipstream.__file__).parent
MISTAKES: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Errors that Slipstream raises by a mistake only."""
SHOWN_LINES: Final = 6


def first_of(error: BaseException) -> BaseException:
    """Return an error; of a group of errors, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def is_internal(error: BaseException) -> bool:
    """Return whether a line of Slipstream raised an error that only a mistake raises.

    It may be a mistake of the caller as well, such as an argument of a wrong type.
    """
    frames = extract_tb(error.__traceback__)
    if not isinstance(error, MISTAKES) or not frames:
        return False
    return PACKAGE in Path(frames[-1].filename).resolve().parents


class InternalErrors:
    """Counts errors, and logs each place in the code once."""

    def __init__(self, *, metrics: Metrics, log: Log) -> None:
        self._metrics = metrics
        self._log = log
        self._logged: set[tuple[str, int | None]] = set()
        for part in get_args(Part):  # Prometheus sees no rise in a counter that appears with its first event
            metrics.count("internal_errors_total", 0, part=part)

    def report(self, part: Part, error: BaseException) -> None:
        """Count an error that was caught in this part."""
        self._metrics.count("internal_errors_total", part=part)
        frames = extract_tb(error.__traceback__)
        place = (frames[-1].filename, frames[-1].lineno) if frames else ("", None)
        if place in self._logged:
            return
        self._logged.add(place)
        lines = " < ".join(
            f"{Path(each.filename).name}:{each.lineno} {each.name}"
            for each in frames[: -SHOWN_LINES - 1 : -1]
        )
        self._log.error(f"internal error in the {part}", error=described(error), lines=lines)
