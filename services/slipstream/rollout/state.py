"""What a rollout worker is doing, as one word on its metrics page."""

from collections.abc import Callable
from typing import Literal, get_args

from slipstream.rollout.served_version import NO_VERSION, ServedVersion
from slipstream.telemetry.metrics import Metrics

State = Literal[
    "starting", "waiting_for_version", "waiting_for_admission", "generating", "updating", "draining"
]
STATES: tuple[State, ...] = get_args(State)


def state_of(served: ServedVersion, *, groups_running: int, stopping: bool) -> State:
    """The state of a worker whose engine has started; one that fails an update is updating until the next."""
    if stopping:
        return "draining"
    if not served.serving:
        return "waiting_for_version" if served.version == NO_VERSION else "updating"
    return "generating" if groups_running else "waiting_for_admission"


def show_state(metrics: Metrics, read: Callable[[], State]) -> None:
    """Show what `read` says whenever the page is asked for: 1 for that state, 0 for every other."""

    def values() -> dict[str, float]:
        now = read()
        return {state: float(state == now) for state in STATES}

    metrics.follow("worker_state", values)
