"""Warns about a running run: failing rewards, and groups without a training signal.

logs of the pods ──▶ notices ─┐
replay's ledger ──▶ filtered ─┼─▶ warnings, and the share of filtered groups for the columns
rows of the steps ──▶ equal ──┘
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence

from slipstream.cli.launch.filtered import FilteredShare, UnvariedSteps
from slipstream.cli.launch.history import History, Row
from slipstream.cli.launch.ledger import read_stats
from slipstream.cli.launch.notices import Notices, sample_line
from slipstream.cli.launch.pods import ROLLOUT, VERIFIER
from slipstream.cli.launch.run_directory import RunDirectory
from slipstream.config import RunConfig

LEDGER_SECONDS = 2.0
"""Time between two readings of the ledger."""
WHAT_TO_DO = "look at the rewards, at how hard the prompts are, and at samples.jsonl"


class RunWarnings:
    """Prints warnings through `say`. Its errors do not stop the run."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        pods: Iterable[str],
        *,
        say: Callable[[str], None],
        history: History,
    ) -> None:
        scoring = [pod for pod in pods if pod.startswith((VERIFIER, ROLLOUT))]
        self._notices = Notices([run.log(pod) for pod in scoring])
        self._share = FilteredShare(config.learner.groups_per_step)
        self._steps = UnvariedSteps()
        distillation = config.algorithm.resolved_distillation()
        self._rewards_train = distillation is None or distillation.reward_weight > 0
        self._rpc = config.rpc
        self._say = say
        self._history = history
        self._reading: asyncio.Task[None] | None = None
        self._next_reading = 0.0

    def look(self, rows: Sequence[Row], *, replay: str | None) -> None:
        """Process new rows of the learner and new lines of the logs, and sometimes start to read the ledger.

        `replay`: address of replay, once it is known. Called often in the event loop, and does not block.
        """
        for line in self._notices.lines():
            self._say(line)
        for row in rows:
            if row.get("event") == "step" and self._rewards_train:
                self._steps.add(row)
                self._warn(self._steps.warning())
        if replay is not None and time.monotonic() >= self._next_reading:
            self._next_reading = time.monotonic() + LEDGER_SECONDS
            self._read_again(replay)

    def _read_again(self, replay: str) -> None:
        """Start to read the ledger in a task, unless one is running; the call has a deadline."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._look_at_ledger(replay))
            self._reading.add_done_callback(self._say_if_failed)

    def _say_if_failed(self, reading: "asyncio.Task[None]") -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            self._next_reading = math.inf
            self._say(f"the share of filtered groups is not shown ({type(error).__name__}: {error})")

    async def _look_at_ledger(self, address: str) -> None:
        stats = await read_stats(address, self._rpc)
        if stats is not None:
            self._history.replay = stats
            self._share.add(stats.ledger)
            self._history.filtered_share = self._share.value
            self._warn(self._share.warning())

    def _warn(self, warning: str) -> None:
        if not warning:
            return
        sample = self._notices.unvaried
        self._say(f"{warning}: {WHAT_TO_DO}")
        if sample is not None:
            self._say(f"  for example, {sample_line(sample)}")
