"""Checks of a run against the values of its release that need a formula, or the size of a file.

The folder guards/ has the checks that only compare keys.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from slipstream.cli.checks import memory
from slipstream.cli.release.guards import RUN_GUARDS, VALUE_GUARDS
from slipstream.cli.release.overlay import pools
from slipstream.cli.release.quantity import size_of
from slipstream.cli.release.release import MODELS, Release, below
from slipstream.config import data, rewards, sources
from slipstream.config.checks import Problem, derived_numbers
from slipstream.config.learner_memory import LearnerMemory, models_beside
from slipstream.hub.safetensors_header import ModelSize, model_size

GIB: Final = 2**30
MIB: Final = 2**20
CHECKPOINT_BYTES: Final = 12
"""Bytes per trained parameter: the weight and the two moments of Adam, in float32."""
OUR_IMAGES: Final = ("", "slipstream/services", "slipstream/cpu", "slipstream/verifier")


def disagreements(release: Release) -> list[Problem]:
    """Return every problem between the run and its values."""
    guards = RUN_GUARDS if release.local_files.installed else (*RUN_GUARDS, *VALUE_GUARDS)
    checks = (*guards, *CHECKS)
    return [problem for check in checks for problem in check(release)]


def learner_needs(release: Release) -> LearnerMemory | None:
    """Return the memory that the learner needs; None if the size of its model is unknown on this machine."""
    return None if release.local_files.models is None else memory.learner_needs(release.config)


def _policy(release: Release) -> ModelSize | None:
    path = release.config.model.path
    return model_size(path) if path is not None and release.local_files.models is not None else None


def _beside(release: Release) -> tuple[ModelSize | None, ModelSize | None]:
    path = release.config.model.path
    if path is None:
        return None, None
    reference, critic = models_beside(release.config, path)
    return (model_size(reference) if reference else None, model_size(critic) if critic else None)


def _learner_memory(release: Release) -> Iterator[Problem]:
    """The memory limit of a pod holds all its ranks on CPUs, or with GPUs the published weights."""
    need, learner = learner_needs(release), release.values["learner"]
    limit = _memory_limit(learner)
    if need is None or limit is None:
        return
    on_gpu = learner["gpu"]["count"] > 0
    local_ranks = learner["ranksPerNode"]
    bytes_needed = need.published_on(local_ranks) + (0 if on_gpu else local_ranks * need.rank_bytes)
    if bytes_needed > limit:
        ranks = f"{local_ranks} rank(s) with the weights that they publish"
        what = "the weights that its ranks publish" if on_gpu else ranks
        yield Problem(
            key="values learner.resources.limits.memory",
            reason=f"is {limit / GIB:.1f} GiB, and {what} need at least {bytes_needed / GIB:.1f} GiB "
            "in a pod",
            remedy="raise it" if on_gpu else "raise it, or learner.nodes",
        )


def _checkpoints(release: Release) -> Iterator[Problem]:
    """The claim holds `keep` checkpoints, another one while it is written, and the stored completions."""
    policy, checkpoints = _policy(release), release.values["learner"]["checkpoints"]
    size = size_of(checkpoints["size"])
    if (
        policy is None
        or size is None
        or checkpoints.get("existingClaim")
        or release.config.learner.lora is not None
    ):
        return
    _, critic = _beside(release)
    parameters = policy.parameters + (critic.parameters if critic else 0)
    held, samples = release.config.learner.checkpoint.keep + 1, release.config.learner.samples
    needed = held * CHECKPOINT_BYTES * parameters
    stored = samples.max_mib * MIB if samples.share else 0
    if needed + stored > size:
        yield Problem(
            key="values learner.checkpoints.size",
            reason=f"is {size / GIB:.1f} GiB, and {held} checkpoints (the run's learner.checkpoint.keep "
            f"and the one that is written) take {needed / GIB:.1f} GiB, beside {stored / GIB:.1f} GiB of "
            "completions (learner.samples.max_mib)",
            remedy="raise it, or lower the run's learner.checkpoint.keep or learner.samples.max_mib",
        )


def _policy_paths(release: Release) -> Iterator[Problem]:
    """The paths of the reference and of the critic are in volumes of the learner."""
    config, learner = release.mounted, release.values["learner"]
    mounts = [str(MODELS), *(mount["mountPath"] for mount in learner["extraVolumeMounts"] or [])]
    critic = config.learner.critic
    paths = {
        "algorithm.reference.path": config.algorithm.reference.path,
        "learner.critic.path": critic.path if critic is not None else None,
    }
    for key, path in paths.items():
        if path is not None and not any(below(path, mount) for mount in mounts):
            yield Problem(
                key=key,
                reason=f"is {path}, where the learner has no volume",
                remedy="set a path below /models, in the volume of the model, or mount it with "
                "learner.extraVolumes and learner.extraVolumeMounts",
            )


def _kv_cache(release: Release) -> Iterator[Problem]:
    """The memory limit of a pool on CPUs holds the key-value cache, which is allocated at the start."""
    cache = release.config.rollout.kv_cache_gib
    if release.config.rollout.engine != "vllm":
        return
    for pool in pools(release.values):
        limit = _memory_limit(pool)
        if pool["gpu"]["count"] == 0 and limit is not None and cache * GIB >= limit:
            yield Problem(
                key="rollout.kv_cache_gib",
                reason=f"is {cache:g}, and a worker of the pool {pool['name']} may have "
                f"{limit / GIB:.1f} GiB with its weights",
                remedy="lower it, or raise resources.limits.memory of the pool or of rollout.defaults",
            )


def _staging(release: Release) -> Iterator[Problem]:
    """The memory limit of a pool holds the versions that its processes receive while they sample."""
    need, config = learner_needs(release), release.config
    if need is None or config.rollout.engine != "vllm" or need.version > config.weights.staging_bytes:
        return
    for pool in pools(release.values):
        limit, gpus = _memory_limit(pool), pool["gpu"]["count"]
        processes = gpus or config.rollout.tensor_parallel
        own = 0 if gpus else need.version + int(config.rollout.kv_cache_gib * GIB)
        kept = config.weights.kept_bytes(need.version)
        needed = processes * kept + own
        if limit is not None and needed > limit:
            yield Problem(
                key="weights.staging_mib",
                reason=f"is {config.weights.staging_mib:g}, so {processes} process(es) of an engine need "
                f"{kept / GIB:.1f} GiB each for a version and a delta, beside what they hold, and a worker "
                f"of the pool {pool['name']} may have {limit / GIB:.1f} GiB",
                remedy="lower it, so that engines pause while a version arrives, or raise "
                "resources.limits.memory of the pool or of rollout.defaults",
            )


def _held_groups(release: Release) -> Iterator[Problem]:
    """The actors hold as many groups as the rollouts of all pools have places."""
    actor, rollout = release.config.actor, release.config.rollout
    pods = release.values["actor"]["replicas"]
    rollouts = sum(_most_rollouts(pool) for pool in pools(release.values))
    if pods * actor.max_groups < rollouts * rollout.max_groups:
        yield Problem(
            key="values actor.replicas",
            reason=f"is {pods}, and {pods} × {actor.max_groups} groups (actor.max_groups) are fewer than the "
            f"{rollouts} × {rollout.max_groups} places (rollout.max_groups) of all workers: "
            "places stay empty",
            remedy=f"raise it to {-(-rollouts * rollout.max_groups // actor.max_groups)}, or raise the run's "
            "actor.max_groups",
            severity="note",
        )


def _most_rollouts(pool: Mapping[str, Any]) -> int:
    scaling = pool["autoscaling"]
    return int(pool["replicas"] if scaling["kind"] == "none" else scaling["maxReplicas"])


def _redis(release: Release) -> Iterator[Problem]:
    """Redis holds every admitted group at its full length."""
    if release.values["redis"]["mode"] != "builtIn":
        return
    numbers = derived_numbers(release.config, held_out_size=None)
    room, most = (
        release.values["redis"]["maxMemoryMiB"],
        numbers.admission_capacity * numbers.group_bytes // MIB,
    )
    if most > room:
        yield Problem(
            key="values redis.maxMemoryMiB",
            reason=f"is {room:,}, and {numbers.admission_capacity:,} groups that are admitted may hold "
            f"{most:,} MiB when every completion has its full length: Redis would refuse groups",
            remedy="raise it together with redis.resources.limits.memory, or lower rollout.max_new_tokens, "
            "learner.groups_per_step or staleness.pipeline_depth",
            severity="note",
        )


def _programs(release: Release) -> Iterator[Problem]:
    """The memory limit of a verifier holds a program of a model, or the verifier refuses to start."""
    limit = _memory_limit(release.values["verifier"])
    config = release.config
    programs = {
        f"rewards.{position}.memory_mib": reward.memory_mib
        for position, reward in enumerate(config.rewards)
        if isinstance(reward, rewards.CodeTestsConfig)
    }
    programs |= {
        f"memory_mib of the tool {tool.name}": tool.memory_mib for tool in sources.python_tools_of(config)
    }
    for key, memory_mib in programs.items():
        if limit is not None and memory_mib * MIB >= limit:
            yield Problem(
                key=key,
                reason=f"is {memory_mib}, and a verifier may have {limit // MIB} MiB in all",
                remedy="lower it, or raise verifier.resources.limits.memory",
            )


def _where_data_comes_from(release: Release) -> Iterator[Problem]:
    """The image of replay has the library of its prompts, and the NetworkPolicies allow their download."""
    values = release.values
    own_image = values["replay"]["image"]["repository"] or values["image"]["repository"] or ""
    kinds = {type(part) for part in data.parts(release.mounted.data)}
    if data.ReasoningGymData in kinds and own_image in OUR_IMAGES:
        yield Problem(
            key="data.kind",
            reason="is reasoning_gym, and the image slipstream/services has no reasoning-gym",
            remedy="build an image with the extra `reasoning-gym`, and set replay.image to it",
        )
    if data.HubData in kinds and values["network"].get("policies"):
        yield Problem(
            key="data.kind",
            reason="is hub, and the NetworkPolicies let replay reach nothing but Redis",
            remedy="download the data into a claim and name it by data.existingClaim and "
            "`data: {kind: file}`, or set network.policies to false",
        )


def _memory_limit(room: Mapping[str, Any]) -> int | None:
    return size_of(((room.get("resources") or {}).get("limits") or {}).get("memory"))


CHECKS: Final[tuple[Callable[[Release], Iterator[Problem]], ...]] = (
    _learner_memory,
    _checkpoints,
    _policy_paths,
    _kv_cache,
    _staging,
    _held_groups,
    _redis,
    _programs,
    _where_data_comes_from,
)
