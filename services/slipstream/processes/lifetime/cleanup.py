"""Kills every process that a command has started, directly or not, when the command ends."""

import os
import uuid
from collections.abc import Collection
from types import TracebackType
from typing import Self

from slipstream.processes.lifetime import left_over, parent_death, process_tree, watchdog


class ProcessCleanup:
    """Invariant: once the context has ended, in whatever way, no process of the command lives.

    Processes that were there before are left alone. `without`: environment variables that children do not
    inherit.
    """

    def __init__(self, *, without: Collection[str] = ()) -> None:
        self._without = without
        self._token = uuid.uuid4().hex
        self._sessions: set[int] = set()
        self._before = process_tree.descendants(os.getpid())
        self._watchdog = watchdog.Watchdog(self._token)

    def __enter__(self) -> Self:
        parent_death.adopt_orphans()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sweep(grace=0)
        self._watchdog.dismiss()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a child: ours with the token of the run.

        SPT_NOENV keeps setproctitle, which vLLM uses, from overwriting the token.
        """
        inherited = {name: value for name, value in os.environ.items() if name not in self._without}
        return {**inherited, left_over.TOKEN_VARIABLE: self._token, "SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"}

    def started(self, pid: int) -> None:
        """Note a child that leads a session of its own."""
        self._sessions.add(pid)
        self._watchdog.watch(pid)

    def spare(self, pid: int) -> None:
        """Leave a child and its descendants alone: it serves the user, and its caller ends it."""
        self._before = {*self._before, pid}

    def reap(self) -> int:
        """Reap dead processes that pods have left to this process; return how many there were."""
        return left_over.reap(spare={*self._sessions, *self._before, self._watchdog.pid})

    def sweep(self, *, grace: float) -> int:
        """Wait `grace` seconds for all processes to end, then kill the rest; return how many were killed."""
        return left_over.sweep(
            self._token,
            sessions=self._sessions,
            ancestor=os.getpid(),
            spare=(self._watchdog.pid,),
            grace=grace,
            before=self._before,
        )
