"""Pause and resume a release: free its GPUs, and take them again. Both can be repeated after an interruption.

    pause:  rollouts ─▶ 0, then learner ─▶ 0 (it writes a checkpoint on SIGTERM), then wait for their end
    resume: learner ─▶ as before, then rollouts ─▶ as before

`pause` stores the number of replicas before it sets 0, and `resume` removes the stored number after it has
set the replicas. So the same command completes one that was interrupted. For a pool that KEDA scales, the
number is in annotations of its ScaledObject. The other numbers are in the release's ConfigMap, because an
annotation of a Deployment would need the permission to change its pods.
"""

import time
from collections.abc import Callable, Mapping

from slipstream.cluster.api import SCALED_OBJECT, Api
from slipstream.cluster.autoscalers import HELD, REMEMBERED, Autoscaler, autoscalers_of
from slipstream.cluster.errors import ClusterError, ClusterUsageError, Missing, Unreachable
from slipstream.cluster.pods import Pod, pods_of
from slipstream.cluster.release import Release, Workload

FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.05, 2.0
MARGIN_SECONDS = 60.0
NO_NUMBER = "autoscaled"
Say = Callable[[str], None]


def read_paused(api: Api, release: Release) -> Mapping[str, int]:
    """Return the stored numbers of replicas, by workload. Errors: ClusterUsageError without the ConfigMap."""
    try:
        data = api.read_map(_map_name(release))
    except Missing as error:
        raise ClusterUsageError(
            f"release {release.name} has no ConfigMap {_map_name(release)}: "
            "upgrade it to this chart's version"
        ) from error
    return {name: int(number) for name, number in data.items() if number.isdecimal()}


def pause(api: Api, release: Release, *, say: Say, wait_seconds: float | None = None) -> None:
    """Scale rollouts and learner to 0, and wait until their pods have ended.

    `wait_seconds`: longest wait; None is the longest grace period of the pods and a minute.
    Errors: ClusterError if some pods still run after the wait.
    """
    pools, learner, autoscalers = release.pools, release.learner, autoscalers_of(api, release)
    read_paused(api, release)
    for workload in (*pools, learner):
        _scale_to_zero(api, release, workload, autoscalers.get(workload.name), say)
    _wait_for_end(api, release, say, wait_seconds)


def resume(api: Api, release: Release, *, say: Say) -> None:
    """Restore the replicas from before the pause. A workload that already has replicas keeps its number."""
    pools, learner, autoscalers = release.pools, release.learner, autoscalers_of(api, release)
    numbers = read_paused(api, release)
    for workload in (learner, *pools):
        autoscaler = autoscalers.get(workload.name)
        if autoscaler is not None and autoscaler.remembered is not None:
            _return_to_keda(api, workload, autoscaler, say)
        elif workload.name in numbers:
            _restore(api, release, workload, numbers[workload.name], say)
        else:
            say(f"{workload.title}: not paused, {workload.desired} replicas")


def _scale_to_zero(
    api: Api, release: Release, workload: Workload, autoscaler: Autoscaler | None, say: Say
) -> None:
    if autoscaler is not None and autoscaler.kind == "ScaledObject":
        _hold_at_zero(api, autoscaler)
    elif workload.desired:
        api.write_map(_map_name(release), {workload.name: str(workload.desired)})
    if not workload.desired:
        say(f"{workload.title}: at 0 already")
        return
    # KEDA would scale its pools later by itself, if it runs. An HPA does nothing while there are 0 replicas.
    api.scale(workload.resource, workload.name, 0)
    say(f"{workload.title}: {workload.desired} → 0")


def _hold_at_zero(api: Api, autoscaler: Autoscaler) -> None:
    """Make KEDA keep 0 replicas and store the number that it kept before, in one request."""
    if autoscaler.remembered is None:
        before = NO_NUMBER if autoscaler.held is None else str(autoscaler.held)
        api.annotate(SCALED_OBJECT, autoscaler.name, {HELD: "0", REMEMBERED: before})


def _return_to_keda(api: Api, workload: Workload, autoscaler: Autoscaler, say: Say) -> None:
    before = autoscaler.remembered if autoscaler.remembered != NO_NUMBER else None
    api.annotate(SCALED_OBJECT, autoscaler.name, {HELD: before, REMEMBERED: None})
    say(f"{workload.title}: " + (f"held at {before} by KEDA again" if before else "scaled by KEDA again"))


def _restore(api: Api, release: Release, workload: Workload, number: int, say: Say) -> None:
    if workload.desired:
        say(f"{workload.title}: stays at {workload.desired}")
    else:
        api.scale(workload.resource, workload.name, number)
        say(f"{workload.title}: 0 → {number}")
    api.write_map(_map_name(release), {workload.name: None})


def _wait_for_end(api: Api, release: Release, say: Say, wait_seconds: float | None) -> None:
    left = _left(api, release)
    grace = max((pod.grace_seconds for pod in left), default=0)
    seconds = grace + MARGIN_SECONDS if wait_seconds is None else wait_seconds
    deadline, look, last_names = time.monotonic() + seconds, FIRST_LOOK_SECONDS, ""
    while left:
        names = ", ".join(release.short(pod.name) for pod in left)
        if time.monotonic() > deadline:
            raise ClusterError(f"after {seconds:g} s still there: {names}; `pause` again goes on waiting")
        if names != last_names:
            say(f"waiting for {names}")
            last_names = names
        time.sleep(look)
        look = min(2 * look, LONGEST_LOOK_SECONDS)
        left = _left(api, release, otherwise=left)
    say("paused: no rollout and no learner is running; `slipstream cluster resume` goes on")


def _left(api: Api, release: Release, *, otherwise: list[Pod] | None = None) -> list[Pod]:
    """Return the pods that hold GPUs; `otherwise`, if it is given, while the API server does not answer."""
    try:
        pods = pods_of(api, release)
    except Unreachable:
        if otherwise is None:
            raise
        return otherwise
    ended = ("Succeeded", "Failed")
    return [pod for pod in pods if pod.component in ("rollout", "learner") and pod.state not in ended]


def _map_name(release: Release) -> str:
    return f"{release.fullname}-paused"
