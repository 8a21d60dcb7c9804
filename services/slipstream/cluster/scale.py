"""Sets the number of rollouts of a pool, unless an autoscaler or a pause determines the number."""

from collections.abc import Mapping

from slipstream.cluster import autoscalers, errors, pause
from slipstream.cluster.api import SCALED_OBJECT, Api
from slipstream.cluster.release import Release, Workload

NOT_SCALED: Mapping[str, str] = {
    "learner": "it is one job of a fixed number of ranks; set those in the values, and upgrade",
    "actor": "it waits for no GPU; set its replicas or its bounds in the values, and upgrade",
    "verifier": "it has an autoscaler of its own; set its bounds in the values, and upgrade",
    "teacher": "it has an autoscaler of its own; set its replicas or its bounds in the values, and upgrade",
    "replay": "it holds no state and waits for no GPU; set its replicas in the values, and upgrade",
    "console": "it is one pod, which shows the run",
    "redis": "there is one, which holds the state of the run",
}


def scale(api: Api, release: Release, target: str, replicas: int, *, override: bool) -> str:
    """Scale `rollout` or `rollout/POOL`, and return a line that describes the change.

    `override`: make KEDA keep the number until `scale_automatically`.
    Errors: ClusterUsageError for another target, an unknown or unnamed pool, a paused release, or a pool that
    an autoscaler owns.
    """
    workload = choose_pool(release, target)
    autoscaler = autoscalers.autoscalers_of(api, release).get(workload.name)
    _refuse_paused(api, release, workload, autoscaler)
    if autoscaler is None:
        api.scale(workload.resource, workload.name, replicas)
        return f"{workload.title}: {workload.desired} → {replicas}"
    if autoscaler.kind == "ScaledObject" and override:
        api.annotate(SCALED_OBJECT, autoscaler.name, {autoscalers.HELD: str(replicas)})
        return (
            f"{workload.title}: KEDA holds {replicas}, until `slipstream cluster scale {workload.title} auto`"
        )
    raise errors.ClusterUsageError(_owned(workload, autoscaler))


def scale_automatically(api: Api, release: Release, target: str) -> str:
    """Let KEDA scale a pool again, and return a line that describes the change. Errors: those of `scale`."""
    workload = choose_pool(release, target)
    autoscaler = autoscalers.autoscalers_of(api, release).get(workload.name)
    _refuse_paused(api, release, workload, autoscaler)
    if autoscaler is None:
        raise errors.ClusterUsageError(f"{workload.title} has no autoscaler: give a number of replicas")
    if autoscaler.held is None:
        return f"{workload.title}: scaled by {autoscaler.name} already"
    api.annotate(SCALED_OBJECT, autoscaler.name, {autoscalers.HELD: None})
    return f"{workload.title}: scaled by KEDA again, {autoscaler.minimum} to {autoscaler.maximum}"


def choose_pool(release: Release, target: str) -> Workload:
    """Return the workload that `rollout` or `rollout/POOL` names. Errors: ClusterUsageError."""
    component, _, pool = target.partition("/")
    if component != "rollout":
        reason = NOT_SCALED.get(component, "only rollout or rollout/POOL can be scaled")
        raise errors.ClusterUsageError(f"cannot scale {target}: {reason}")
    pools = release.pools
    names = ", ".join(workload.title for workload in pools)
    if not pool and len(pools) > 1:
        raise errors.ClusterUsageError(f"release {release.name} has several pools; choose one of {names}")
    named = [workload for workload in pools if not pool or workload.pool == pool]
    if not named:
        raise errors.ClusterUsageError(f"release {release.name} has no pool {pool!r}; it has {names}")
    return named[0]


def _refuse_paused(
    api: Api, release: Release, workload: Workload, autoscaler: autoscalers.Autoscaler | None
) -> None:
    held_by_pause = autoscaler is not None and autoscaler.remembered is not None
    if held_by_pause or workload.name in pause.read_paused(api, release):
        raise errors.ClusterUsageError(f"{workload.title} is paused: `slipstream cluster resume` first")


def _owned(workload: Workload, autoscaler: autoscalers.Autoscaler) -> str:
    bounds = f"{autoscaler.kind} {autoscaler.name}, {autoscaler.minimum} to {autoscaler.maximum}"
    where = f"{workload.title} is scaled by an autoscaler ({bounds}), which would undo this:"
    if autoscaler.kind == "ScaledObject":
        return f"{where} change its bounds in the values, or add --override to have KEDA hold a number"
    return (
        f"{where} change its bounds in the values; a HorizontalPodAutoscaler cannot be told to hold a number"
    )
