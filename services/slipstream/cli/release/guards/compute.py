"""Guards on the ranks of the learner, and on the pools with their engines."""

from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.cli.release.overlay import learner_ranks
from slipstream.cli.release.overlay import pools as all_pools
from slipstream.cli.release.release import Release
from slipstream.cli.release.run_tree import has_key, value_of
from slipstream.config.checks import Problem


def device_problem(release: Release, room: str) -> Iterator[Problem]:
    """The device that the run sets for a component is one that the component has."""
    device, gpus = value_of(release.run, f"{room}.device", "auto"), release.values[room]["gpu"]["count"]
    if device == "cuda" and gpus == 0:
        yield Problem(
            key=f"{room}.device",
            reason=f"is cuda, and the values' {room}.gpu.count is 0",
            remedy=f"set the values' {room}.gpu.count to 1 or more, or the device to auto",
        )
    if device == "cpu" and gpus > 0:
        yield Problem(
            key=f"{room}.device",
            reason=f"is cpu, and the values' {room}.gpu.count is {gpus}",
            remedy=f"set the values' {room}.gpu.count to 0, or the device to auto",
        )


def learner(release: Release) -> Iterator[Problem]:
    """The run does not set another number of ranks than the chart starts."""
    values, wanted = release.values["learner"], value_of(release.run, "learner.ranks")
    ranks, gpus = learner_ranks(release.values), values["gpu"]["count"]
    if wanted is not None and wanted != ranks:
        yield Problem(
            key="learner.ranks",
            reason=f"is {wanted}, and the values start {values['nodes']} × {ranks // (values['nodes'] or 1)} "
            f"= {ranks}",
            remedy="leave it out of the run, or change the values' learner.nodes, learner.gpu.count or "
            "(on CPUs) learner.ranksPerNode",
        )
    yield from device_problem(release, "learner")
    if gpus > 0 and (values.get("ranksPerNode") or 0) > 1:
        yield Problem(
            key="values learner.ranksPerNode",
            reason=f"is {values['ranksPerNode']}, and with GPUs a rank is a GPU",
            remedy="leave it at 1, and set learner.gpu.count",
        )


def checkpoints_of_nodes(release: Release) -> Iterator[Problem]:
    """Several pods of a learner can write to one claim."""
    learner = release.values["learner"]
    nodes, checkpoints = learner["nodes"], learner["checkpoints"]
    modes = checkpoints.get("accessModes") or []
    if nodes > 1 and not checkpoints["existingClaim"] and "ReadWriteMany" not in modes:
        yield Problem(
            key="values learner.nodes",
            reason=f"is {nodes}, and all of them write one checkpoint",
            remedy="set learner.checkpoints.accessModes to [ReadWriteMany] with a storage class that has it, "
            "or learner.checkpoints.existingClaim to such a claim",
        )


def moved(release: Release) -> Iterator[Problem]:
    """Actors hold the groups, so what a stop may take is a value of theirs."""
    values = release.values["rollout"]
    rooms = {"rollout": values, "rollout.defaults": values["defaults"]}
    rooms |= {f"rollout.pools[{pool['name']}]": pool for pool in values["pools"]}
    for where, room in rooms.items():
        for key in ("drainSeconds", "marginSeconds"):
            if room.get(key) is not None:
                yield Problem(
                    key=f"values {where}.{key}",
                    reason=f"has moved to actor.{key}, because actors hold the groups",
                    remedy="set it there, and leave it out here",
                )


def pools(release: Release) -> Iterator[Problem]:
    """Each pool has the GPUs that the run's engine uses."""
    if value_of(release.run, "rollout.nodes") is not None:
        yield Problem(
            key="rollout.nodes",
            reason="is set in the run, and the chart says it to each pool",
            remedy="leave it out of the run, and set nodes in the values' rollout.defaults or in a pool",
        )
    names: set[str] = set()
    for pool in all_pools(release.values):
        if pool["name"] in names:
            yield _problem(pool, "has the name of another pool", "give each pool a name of its own")
        names.add(pool["name"])
        yield from _spanning(release, pool) if pool["nodes"] > 1 else _single(release, pool)
        yield from _beside_learner(release, pool)


def _problem(pool: Mapping[str, Any], reason: str, remedy: str) -> Problem:
    return Problem(key=f"values rollout.pools[{pool['name']}]", reason=reason, remedy=remedy)


def _single(release: Release, pool: Mapping[str, Any]) -> Iterator[Problem]:
    count, rollout = pool["gpu"]["count"], release.mounted.rollout
    parallel = rollout.tensor_parallel
    if count > 0 and rollout.engine != "vllm":
        yield _problem(
            pool,
            f"has {count} GPUs, and the run's rollout.engine is {rollout.engine}, which uses none",
            "set gpu.count to 0 in rollout.defaults or in the pool",
        )
    elif count != parallel and (count > 0 or parallel > 1):
        yield _problem(
            pool,
            f"has {count} GPUs a worker, and the run's rollout.tensor_parallel is {parallel}",
            f"set the pool's gpu.count to {parallel}, or change the run's rollout.tensor_parallel "
            "or the pool's nodes",
        )


def _spanning(release: Release, pool: Mapping[str, Any]) -> Iterator[Problem]:
    """A pool whose rollouts have several pods each."""
    nodes, count, rollout = pool["nodes"], pool["gpu"]["count"], release.mounted.rollout
    if rollout.engine != "vllm":
        yield _problem(
            pool,
            f"has {nodes} nodes, and the run's rollout.engine is {rollout.engine}, which stays in one pod",
            "set the pool's nodes to 1",
        )
    elif count == 0:
        yield _problem(
            pool,
            f"has {nodes} nodes and no GPU",
            "set the pool's nodes to 1, or its gpu.count to the GPUs of a node",
        )
    elif nodes * count != rollout.tensor_parallel:
        yield _problem(
            pool,
            f"has {nodes} × {count} = {nodes * count} GPUs a worker, and the run's "
            f"rollout.tensor_parallel is {rollout.tensor_parallel}",
            f"set the run's to {nodes * count}, or the pool's nodes and gpu.count",
        )
    half = value_of(release.run, "model.dtype") == "bfloat16"
    serve = value_of(release.run, "learner.lora.serve", "adapter" if half else "merged")
    if isinstance(value_of(release.run, "learner.lora"), Mapping) and serve == "adapter":
        default = "" if has_key(release.run, "learner.lora.serve") else " (the default with bfloat16)"
        yield _problem(
            pool,
            f"has {nodes} nodes, and the run's learner.lora.serve is adapter{default}, "
            "which works in one pod",
            "set the run's learner.lora.serve to merged, or the pool's nodes to 1",
        )


def _beside_learner(release: Release, pool: Mapping[str, Any]) -> Iterator[Problem]:
    """Learner and pool both have GPUs or both have none: weights go between GPUs or between CPUs."""
    count, gpus = pool["gpu"]["count"], release.values["learner"]["gpu"]["count"]
    if value_of(release.run, "rollout.device") == "cuda" and count == 0:
        yield _problem(
            pool,
            "has no GPU, and the run's rollout.device is cuda",
            "set the pool's gpu.count, or the run's rollout.device to auto",
        )
    if gpus > 0 and count == 0:
        yield _problem(
            pool,
            "has no GPU and the learner has; weights go between GPUs or between CPUs",
            "set learner.gpu.count to 0, or the pool's gpu.count to the run's rollout.tensor_parallel",
        )
    elif gpus == 0 and count > 0:
        yield _problem(
            pool,
            "has GPUs and the learner has none; weights go between GPUs or between CPUs",
            "set the pool's gpu.count to 0, or learner.gpu.count to the GPUs of a node",
        )
