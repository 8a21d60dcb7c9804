"""Signals of the command: the first stops the run in order, a second Ctrl-C at once."""

import asyncio
import signal
import time

ORDERLY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_KEY_PRESS_SECONDS = 0.3


class Interrupt:
    """`requested` is set by the first signal. A later Ctrl-C cancels the task that created the instance.

    Programs such as make forward a Ctrl-C that the kernel also delivers, so signals of the same moment count
    once.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.since = 0.0
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        for number in ORDERLY:
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: signal.Signals) -> None:
        if not self.requested.is_set():
            self.since = time.monotonic()
            self.requested.set()
        elif number is signal.SIGINT and time.monotonic() - self.since > ONE_KEY_PRESS_SECONDS:
            self._task.cancel()
