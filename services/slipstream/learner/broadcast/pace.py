"""Notices that the forming of a group, or a broadcast, stands still.

A step stands still if it takes much longer than all earlier ones of its kind, or if a rollout is silent.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from slipstream.learner.broadcast.fleet import Member
from slipstream.learner.broadcast.latecomers import POLL_SECONDS, Latecomers
from slipstream.telemetry.logs import Log

SLOWER = 10.0
"""A step may take this many times as long as the longest one before it, and the patience besides."""
LIVELY_SECONDS = 2 * POLL_SECONDS
"""Nobody is asked for a sign of life in a step that is shorter."""


class Pace:
    """The steps of one kind, such as the buckets of a broadcast. Threads may call."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._longest: float | None = None
        self._began = 0.0

    def begin(self) -> None:
        """Begin the first of several steps."""
        self._began = time.monotonic()

    def step(self) -> None:
        """End a step, and begin the next one."""
        now = time.monotonic()
        self._longest = max(self._longest or 0.0, now - self._began)
        self._began = now

    def step_seconds(self) -> float:
        """Return how long the present step has taken."""
        return time.monotonic() - self._began

    def stands_still(self) -> bool:
        """Return whether the present step takes too long. It does not before a first step has ended."""
        if self._longest is None:
            return False
        return self.step_seconds() > self._patience + SLOWER * self._longest


class Paces:
    """The paces of all kinds of steps of publications."""

    def __init__(self, patience_seconds: float, latecomers: Latecomers, log: Log) -> None:
        self._paces = {kind: Pace(patience_seconds) for kind in ("forming", "full", "delta")}
        self._latecomers = latecomers
        self._log = log
        self._slow = False
        """Whether an update was too slow, and no rollout was left out since."""
        self._silent: set[Member] = set()
        """Members whose silence ended an update of this publication; it ends no second one."""

    def begin(self, kind: str) -> Pace:
        """Begin the first of several steps of a kind."""
        pace = self._paces[kind]
        pace.begin()
        return pace

    def begin_publication(self) -> None:
        """Let updates stand still as for the first time."""
        self._slow = False
        self._silent.clear()

    def forgive(self) -> None:
        """Let one more update be too slow, because a rollout was left out."""
        self._slow = False

    async def stands_still(
        self, kind: str, tasks: Iterable[asyncio.Task[Any]], members: Iterable[Member], *, version: int
    ) -> bool:
        """Wait until the tasks are done, or stand still; return whether they do.

        members: with which the tasks are done. They stand still if some of them are silent, each member once
        in a publication, and if a step is too slow: once, and once more after each rollout that was left out.
        So rollouts and networks that have become slow delay a publication and do not stop it.
        """
        pace, pending, members = self._paces[kind], set(tasks), list(members)
        while pending:
            _, pending = await asyncio.wait(pending, timeout=POLL_SECONDS)
            if not pending:
                break
            if pace.step_seconds() < LIVELY_SECONDS:
                for member in members:
                    member.liveness.begin()  # of each step anew
                continue
            silent = set(self._latecomers.silent(members, version))
            silent = set() if len(silent) == len(members) else silent - self._silent  # somebody has to go on
            if silent or (pace.stands_still() and not self._slow):
                self._slow |= not silent
                self._silent |= silent
                names = ",".join(sorted(member.worker_id for member in silent))
                self._log.warning("an update stands still", during=kind, version=version, silent=names)
                return True
        return False
