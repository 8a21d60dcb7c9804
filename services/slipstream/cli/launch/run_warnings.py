"""Warns about a running run: failing rewards, and groups without a training signal.

logs of the pods ──▶ Notices ────────┐
replay's ledger ──▶ FilteredShare ───┼─▶ warnings, and the share of filtered groups for the columns
rows of the steps ──▶ UnvariedSteps ─┘
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slipstream.cli.launch import filtered, ledger, run_directory
from slipstream.cli.launch.history import History, Row, Tail
from slipstream.cli.launch.pods import ROLLOUT, VERIFIER
from slipstream.config import RunConfig
from slipstream.telemetry.logs import Event, read_event

REWARD_FAILED = "reward failed"
NOT_JUDGED = "prompt cannot be judged"
UNVARIED = "group without variance"
MARKS = tuple(event.encode() for event in (REWARD_FAILED, NOT_JUDGED, UNVARIED))
SHOWN_CHARACTERS = 160
LEDGER_SECONDS = 2.0
"""Time between two readings of the ledger."""
WHAT_TO_DO = "look at the rewards, at how hard the prompts are, and at samples.jsonl"


class RunWarnings:
    """Prints warnings through `say`. Its errors do not stop the run."""

    def __init__(
        self,
        config: RunConfig,
        run: run_directory.RunDirectory,
        pods: Iterable[str],
        *,
        say: Callable[[str], None],
        history: History,
    ) -> None:
        scoring = [pod for pod in pods if pod.startswith((VERIFIER, ROLLOUT))]
        self._notices = Notices([run.log(pod) for pod in scoring])
        self._share = filtered.FilteredShare(config.learner.groups_per_step)
        self._steps = filtered.UnvariedSteps()
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
        stats = await ledger.read_stats(address, self._rpc)
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


class Notices:
    """Finds events in growing logs, such as a failing reward: one structured line each (telemetry/logs.py).

    `unvaried`: the newest group whose answers all have the same reward."""

    def __init__(self, logs: Sequence[Path]) -> None:
        self._tails = [(path, Tail(path, only_new=True)) for path in logs]
        self._failures: Counter[str] = Counter()
        # By reward: the first pod that reported a failure of it. Reports of other pods do not count, because
        # verifier and actor may both report the same failure.
        self._reporter: dict[str, str] = {}
        self._not_judged = 0
        self.unvaried: Event | None = None

    def lines(self) -> list[str]:
        """Return lines for new events: the first failure of each reward, then its 10th, 100th, and so on."""
        return [
            line
            for log, tail in self._tails
            for raw in tail.lines()
            if any(mark in raw for mark in MARKS)
            and (event := read_event(raw.decode(errors="replace"))) is not None
            and (line := self._line(event, log))
        ]

    def _line(self, event: Event, log: Path) -> str:
        prompt = event.values.get("prompt", "?")
        if event.event == UNVARIED:
            self.unvaried = event
        if event.event == NOT_JUDGED:
            self._not_judged += 1
            if _is_power_of_ten(self._not_judged):
                return f"{_times(self._not_judged)}{readable(event.values.get('reason', ''))}; see {log}"
        if event.event == REWARD_FAILED:
            reward = event.values.get("reward", "?")
            if self._reporter.setdefault(reward, event.pod) != event.pod:
                return ""
            self._failures[reward] += 1
            if _is_power_of_ten(self._failures[reward]):
                times, detail = _times(self._failures[reward]), readable(event.values.get("detail", ""))
                return f"{times}reward `{reward}` failed on prompt {prompt}: {detail}; see {log}"
        return ""


def sample_line(event: Event) -> str:
    """Describe a group whose answers all have the same reward."""
    values = event.values
    return (
        f"all {values.get('answers')} answers to prompt {values.get('prompt')} (ground truth "
        f"{readable(values.get('truth', ''))!r}) were rewarded alike: {values.get('rewards')}; one of them "
        f"is {readable(values.get('answer', ''))!r}"
    )


def readable(text: str) -> str:
    """Return the first line of a text, shortened, without terminal control characters."""
    first = text.strip().split("\n", 1)[0]
    shown = "".join(character if character.isprintable() else "�" for character in first)
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[:SHOWN_CHARACTERS]}…"


def _is_power_of_ten(count: int) -> bool:
    return str(count).strip("0") == "1"


def _times(count: int) -> str:
    return "" if count == 1 else f"{count:,} times so far: "
