"""The state of a rollout, as a metric with one label per state."""

from collections.abc import Callable
from typing import Literal, get_args

from slipstream.records import NO_VERSION
from slipstream.served_version import ServedVersion
from slipstream.telemetry.metrics import Metrics

State = Literal["starting", "waiting_for_version", "waiting_for_groups", "generating", "updating", "draining"]
STATES: tuple[State, ...] = get_args(State)


def state_of(served: ServedVersion, *, groups_running: int, stopping: bool) -> State:
    """Return the state of a rollout whose engine has started.

    After a failed update the state stays `updating` until an update succeeds.
    """
    if stopping:
        return "draining"
    if not served.serving:
        return "waiting_for_version" if served.version == NO_VERSION else "updating"
    return "generating" if groups_running else "waiting_for_groups"


def show_state(metrics: Metrics, read: Callable[[], State]) -> None:
    """Have each scrape of the metrics call `read`, and show 1 for its state and 0 for every other."""

    def values() -> dict[str, float]:
        current = read()
        return {state: float(state == current) for state in STATES}

    metrics.follow("worker_state", values)
