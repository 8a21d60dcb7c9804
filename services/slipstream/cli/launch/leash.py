"""What keeps every process of a command from outliving it: marks, a watchdog, and a last sweep."""

import ctypes
import os
import sys
import uuid
from types import TracebackType
from typing import Self

from slipstream.cli.launch.orphans import TOKEN_VARIABLE, descendants, reap, sweep
from slipstream.cli.launch.watchdog import Watchdog
from slipstream.config.load import ENVIRONMENT

PR_SET_CHILD_SUBREAPER = 36


class Leash:
    """Invariant: when it is left, by whatever way, no marked process lives.

    Processes that this one had started before it is entered are left alone.
    """

    def __init__(self) -> None:
        self._token = uuid.uuid4().hex
        self._sessions: set[int] = set()
        self._before = descendants(os.getpid())
        self._watchdog = Watchdog(self._token)

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sweep(grace=0)
        self._watchdog.dismiss()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a child: ours, marked, without the addresses that the launcher itself gives.

        SPT_NOENV keeps setproctitle, which vLLM uses, from writing over the mark.
        """
        ours = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
        return {**ours, TOKEN_VARIABLE: self._token, "SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"}

    def started(self, pid: int) -> None:
        """Remember the session of a child."""
        self._sessions.add(pid)
        self._watchdog.watch(pid)

    def reap(self) -> int:
        """Collect dead processes that pods left to us; returns how many there were."""
        return reap(spare={*self._sessions, *self._before, self._watchdog.pid})

    def sweep(self, *, grace: float) -> int:
        """Give what is left `grace` seconds, then kill it; returns how many had to be killed."""
        return sweep(
            self._token,
            sessions=self._sessions,
            ancestor=os.getpid(),
            spare=(self._watchdog.pid,),
            grace=grace,
            before=self._before,
        )
