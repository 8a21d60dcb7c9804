"""Watches a run for what a person should know while it goes on: failing rewards, groups that teach nothing.

logs of the pods ──▶ notices ─┐
replay's ledger ──▶ filtered ─┼─▶ lines on the console, and the share of filtered groups for its columns
rows of the steps ──▶ equal ──┘
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from slipstream.cli.launch.filtered import FilteredShare, UnvariedSteps
from slipstream.cli.launch.ledger import read_ledger
from slipstream.cli.launch.notices import Notices, sample_line
from slipstream.cli.launch.pods import REPLAY, ROLLOUT, VERIFIER
from slipstream.cli.launch.rows import History, Row
from slipstream.cli.launch.rundir import RunDirectory
from slipstream.config import RunConfig

LOOK_SECONDS = 0.5
LEDGER_LOOKS = 4
"""The ledger is read at every so many looks."""
WHAT_TO_DO = "look at the rewards, at how hard the prompts are, and at samples.jsonl"


class Attention:
    """Says what it notices through `say`. Nothing that it does may stop the run."""

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
        self._rpc = config.rpc
        self._say = say
        self._history = history

    async def watch(self, address_of: Callable[[str], str | None]) -> None:
        """Until cancelled: look at the logs, and now and then at the ledger of replay."""
        looks = 0
        try:
            while True:
                self._look_at_logs()
                if looks % LEDGER_LOOKS == 0 and (address := address_of(REPLAY)) is not None:
                    await self._look_at_ledger(address)
                looks += 1
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._look_at_logs()

    def rows(self, new: Sequence[Row]) -> None:
        """Take in rows of the learner."""
        for row in new:
            if row.get("event") == "step":
                self._steps.add(row)
                self._warn(self._steps.warning())

    def _look_at_logs(self) -> None:
        for line in self._notices.lines():
            self._say(line)

    async def _look_at_ledger(self, address: str) -> None:
        ledger = await read_ledger(address, self._rpc)
        if ledger is not None:
            self._share.add(ledger)
            self._history.filtered_share = self._share.value
            self._warn(self._share.warning())

    def _warn(self, warning: str) -> None:
        if not warning:
            return
        sample = self._notices.unvaried
        self._say(f"{warning}: {WHAT_TO_DO}")
        if sample is not None:
            self._say(f"  for example, {sample_line(sample)}")
