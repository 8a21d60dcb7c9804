"""Reads the learner's growing metrics.jsonl. If a step was repeated, its last row counts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from slipstream.records import ReplayStats, finite_number

Row = Mapping[str, Any]
PACE_STEPS = 20
"""Number of newest steps from which the pace of a run is computed."""
MOST_STEPS = 2**53
"""Largest step; a float has each integer up to it."""


class Tail:
    """Reads the lines that were added to a file since the last read.

    Invariant: each line is returned once, after its newline was written.
    """

    def __init__(self, path: Path, *, only_new: bool = False) -> None:
        """`only_new`: skip the lines that the file already has."""
        self._path = path
        self._offset = path.stat().st_size if only_new and path.exists() else 0

    def rows(self) -> list[Row]:
        """Return the JSON objects among the new lines; other lines are skipped."""
        return [row for line in self.lines() if (row := _parse(line)) is not None]

    def lines(self) -> list[bytes]:
        """Return the new lines."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                complete, newline, _ = stream.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(complete) + len(newline)
        return complete.split(b"\n") if newline else []


@dataclass(slots=True)
class LearnerSession:
    """The time from one start of the learner to its end; a resumed run has several."""

    loop_seconds: float = 0.0
    idle_seconds: float = 0.0
    """Idle time: the sum over its rows, including steps that are repeated later, until the learner reports
    its total at its end."""


@dataclass(slots=True)
class History:
    """All rows of a run. A step that was repeated after a resume counts once, with its last row."""

    rows: int = 0
    """Number of rows with an event or a step, including those of repeated steps."""
    steps: dict[int, Row] = field(default_factory=dict)
    evaluations: dict[int, Row] = field(default_factory=dict)
    sessions: list[LearnerSession] = field(default_factory=lambda: [LearnerSession()])
    finished: int | None = None
    """Step at which the learner reported its end, after evaluation, checkpoint and model."""
    filtered_share: float | None = None
    """Share of filtered groups among the newest groups; None if it is unknown."""
    replay: ReplayStats | None = None
    """The ledger and the admission of replay, as they were read last; None if they never were."""

    def add(self, row: Row) -> None:
        """Add one row; an unknown event is ignored."""
        event, step = row.get("event"), row.get("step")
        self.rows += isinstance(event, str) or is_step(step)
        if event == "step" and is_step(step):
            self.steps[step] = row
            self.sessions[-1].loop_seconds = number(row, "elapsed_seconds")
            self.sessions[-1].idle_seconds += number(row, "wait_seconds")
        elif event == "evaluation" and is_step(step):
            self.evaluations[step] = row
        elif event == "resumed":
            self._resume(step)
        elif event in ("finished", "interrupted"):
            self.sessions[-1] = LearnerSession(number(row, "loop_seconds"), number(row, "idle_seconds"))
            if event == "finished" and is_step(step):
                self.finished = step

    @property
    def last_step(self) -> Row:
        """The row of the newest step; empty before the first."""
        return self.steps[max(self.steps)] if self.steps else {}

    def newest(self, count: int) -> list[Row]:
        """Return the rows of the newest steps, oldest first."""
        return [self.steps[step] for step in sorted(self.steps)[-count:]]

    @property
    def accuracies(self) -> list[tuple[int, float]]:
        """Steps and held-out accuracies of the evaluations that measured one, in order of steps."""
        measured = ((step, _accuracy(row)) for step, row in sorted(self.evaluations.items()))
        return [(step, value) for step, value in measured if value is not None]

    @property
    def last_accuracy(self) -> tuple[int, float] | None:
        """Step and held-out accuracy of the newest evaluation that measured one."""
        return next(reversed(self.accuracies), None)

    def accuracy_of(self, step: int) -> float | None:
        """Return the held-out accuracy at a step; None if it was not measured."""
        return _accuracy(self.evaluations.get(step, {}))

    def seconds_left(self, steps: int) -> float | None:
        """Return the time to the last step at the current pace; None before the second step of a session."""
        newest = sorted(self.steps)[-PACE_STEPS:]
        clock = [number(self.steps[step], "elapsed_seconds") for step in newest]
        while len(clock) > 1 and clock[0] >= clock[-1]:  # the clock restarts with each session
            newest, clock = newest[1:], clock[1:]
        if len(clock) < 2:
            return None
        pace = (clock[-1] - clock[0]) / (newest[-1] - newest[0])
        return max(0.0, pace * (steps - newest[-1]))

    def has_finished(self, steps: int) -> bool:
        """Return whether the learner reported its end after at least this many steps."""
        return self.finished is not None and self.finished >= steps

    def column(self, key: str) -> list[tuple[int, float]]:
        """Return (step, value) of one key, in order of steps, without steps that lack it."""
        pairs = ((step, finite_number(row.get(key))) for step, row in sorted(self.steps.items()))
        return [(step, value) for step, value in pairs if value is not None]

    def total(self, key: str) -> float:
        """Return the sum of one key over the steps."""
        return sum(value for _, value in self.column(key))

    def _resume(self, step: object) -> None:
        """Start a session at a checkpoint, and drop the rows of later steps, which are repeated."""
        self.sessions.append(LearnerSession())
        if is_step(step):
            self.steps = {done: row for done, row in self.steps.items() if done <= step}
            self.evaluations = {done: row for done, row in self.evaluations.items() if done <= step}
            if self.finished is not None and self.finished > step:
                self.finished = None


def is_step(value: object) -> TypeGuard[int]:
    """Return whether a value of a row can be the number of a step."""
    return isinstance(value, int) and 0 <= value <= MOST_STEPS


def read_history(path: Path) -> History:
    """Return the history in a metrics.jsonl; empty if the file does not exist."""
    history = History()
    for row in Tail(path).rows():
        history.add(row)
    return history


def number(row: Row, key: str) -> float:
    """Return a value as a number; 0 if it is missing or no finite number."""
    return finite_number(row.get(key)) or 0.0


def _accuracy(row: Row) -> float | None:
    return finite_number(row.get("accuracy"))


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
