"""Tasks that run beside the code that started them: what one raises is logged, waited for or not."""

import asyncio
from typing import Any

from slipstream.telemetry.logs import Log


def log_failure(task: asyncio.Task[Any], what: str, log: Log, **values: object) -> None:
    """When the task ends with an exception, write an error line «`what` failed» with its reason.

    Whoever awaits the task gets the exception as before. A cancelled task is no failure.
    """

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error(f"{what} failed", **values, error=f"{type(error).__name__}: {error}")

    task.add_done_callback(ended)
