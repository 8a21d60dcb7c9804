"""Pause and resume: free a release's GPUs and take them again, each step of it safe to be repeated.

    pause:  rollouts ─▶ 0, then learner ─▶ 0 (it writes a checkpoint on SIGTERM), then wait for their end
    resume: learner ─▶ as before, then rollouts ─▶ as before

A number is remembered before it is taken away and forgotten after it has been put back, so whoever stops in
between is completed by the same command again. A pool of KEDA carries its own number, as annotations of its
ScaledObject; the numbers of all others are in the release's ConfigMap, because writing an annotation of a
Deployment would take the right to change its pods.
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
    """The numbers put aside, by name of the workload. Errors: ClusterUsageError without their ConfigMap."""
    try:
        data = api.read_map(_memory(release))
    except Missing as error:
        raise ClusterUsageError(
            f"release {release.name} has no ConfigMap {_memory(release)}: upgrade it to this chart's version"
        ) from error
    return {name: int(number) for name, number in data.items() if number.isdecimal()}


def pause(api: Api, release: Release, *, say: Say, wait_seconds: float | None = None) -> None:
    """Take the pods of rollouts and learner away, and wait until they are gone.

    The wait is `wait_seconds`, by default the longest grace period of the pods and a minute.

    Errors: ClusterError when some are still there at the end of the wait.
    """
    pools, learner, autoscalers = release.pools, release.learner, autoscalers_of(api, release)
    read_paused(api, release)
    for workload in (*pools, learner):
        _take(api, release, workload, autoscalers.get(workload.name), say)
    _wait_for_end(api, release, say, wait_seconds)


def resume(api: Api, release: Release, *, say: Say) -> None:
    """Put back what a pause has taken. Replicas that have come back in another way stay as they are."""
    pools, learner, autoscalers = release.pools, release.learner, autoscalers_of(api, release)
    numbers = read_paused(api, release)
    for workload in (learner, *pools):
        autoscaler = autoscalers.get(workload.name)
        if autoscaler is not None and autoscaler.remembered is not None:
            _let_go(api, workload, autoscaler, say)
        elif workload.name in numbers:
            _put_back(api, release, workload, numbers[workload.name], say)
        else:
            say(f"{workload.title}: not paused, {workload.desired} replicas")


def _take(api: Api, release: Release, workload: Workload, autoscaler: Autoscaler | None, say: Say) -> None:
    if autoscaler is not None and autoscaler.kind == "ScaledObject":
        _hold(api, autoscaler)
    elif workload.desired:
        api.write_map(_memory(release), {workload.name: str(workload.desired)})
    if not workload.desired:
        say(f"{workload.title}: at 0 already")
        return
    # Of a ScaledObject too: KEDA does the same in its own time, if it runs. An HPA sleeps at 0 replicas.
    api.scale(workload.resource, workload.name, 0)
    say(f"{workload.title}: {workload.desired} → 0")


def _hold(api: Api, autoscaler: Autoscaler) -> None:
    """Have KEDA keep 0, and remember what it kept before, in one step."""
    if autoscaler.remembered is None:
        before = NO_NUMBER if autoscaler.held is None else str(autoscaler.held)
        api.annotate(SCALED_OBJECT, autoscaler.name, {HELD: "0", REMEMBERED: before})


def _let_go(api: Api, workload: Workload, autoscaler: Autoscaler, say: Say) -> None:
    before = autoscaler.remembered if autoscaler.remembered != NO_NUMBER else None
    api.annotate(SCALED_OBJECT, autoscaler.name, {HELD: before, REMEMBERED: None})
    say(f"{workload.title}: " + (f"held at {before} by KEDA again" if before else "scaled by KEDA again"))


def _put_back(api: Api, release: Release, workload: Workload, number: int, say: Say) -> None:
    if workload.desired:
        say(f"{workload.title}: stays at {workload.desired}")
    else:
        api.scale(workload.resource, workload.name, number)
        say(f"{workload.title}: 0 → {number}")
    api.write_map(_memory(release), {workload.name: None})


def _wait_for_end(api: Api, release: Release, say: Say, wait_seconds: float | None) -> None:
    left = _left(api, release)
    grace = max((pod.grace_seconds for pod in left), default=0)
    seconds = grace + MARGIN_SECONDS if wait_seconds is None else wait_seconds
    deadline, look, said = time.monotonic() + seconds, FIRST_LOOK_SECONDS, ""
    while left:
        names = ", ".join(release.short(pod.name) for pod in left)
        if time.monotonic() > deadline:
            raise ClusterError(f"after {seconds:g} s still there: {names}; `pause` again goes on waiting")
        if names != said:
            say(f"waiting for {names}")
            said = names
        time.sleep(look)
        look = min(2 * look, LONGEST_LOOK_SECONDS)
        left = _left(api, release, otherwise=left)
    say("paused: no rollout and no learner is running; `slipstream cluster resume` goes on")


def _left(api: Api, release: Release, *, otherwise: list[Pod] | None = None) -> list[Pod]:
    """The pods that hold GPUs; what was known before while the API server is away."""
    try:
        pods = pods_of(api, release)
    except Unreachable:
        if otherwise is None:
            raise
        return otherwise
    ended = ("Succeeded", "Failed")
    return [pod for pod in pods if pod.component in ("rollout", "learner") and pod.state not in ended]


def _memory(release: Release) -> str:
    return f"{release.fullname}-paused"
