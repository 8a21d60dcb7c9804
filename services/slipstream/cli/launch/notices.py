"""Finds events in the logs of the pods that the user should see at once, such as a failing reward.

An event is one structured line of a log (telemetry/logs.py).
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from slipstream.cli.launch.history import Tail
from slipstream.telemetry.logs import Event, read_event

REWARD_FAILED = "reward failed"
NOT_JUDGED = "prompt cannot be judged"
UNVARIED = "group without variance"
MARKS = tuple(event.encode() for event in (REWARD_FAILED, NOT_JUDGED, UNVARIED))
SHOWN_CHARACTERS = 160


class Notices:
    """Reads growing logs. `unvaried`: the newest group whose answers all have the same reward."""

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
