"""The lower bound of the learner's memory, and the memory in which engines receive a version."""

from collections.abc import Iterator

from slipstream.config import Problem, RunConfig
from slipstream.config.learner_memory import LearnerMemory, learner_memory, models_beside
from slipstream.hub.safetensors_header import model_size

MIB = 1024**2
GIB = 1024**3


def memory_lines(config: RunConfig) -> list[tuple[str, str]]:
    """Return the row on the learner's memory; none for a tiny model, or if a model's files cannot be read."""
    need, ranks = learner_needs(config), config.learner.ranks
    if need is None:
        return []
    each = f"on each of {ranks} ranks" if ranks > 1 else "on its one rank"
    text = f"at least {need.rank_bytes / GIB:,.2f} GiB {each}, before activations"
    return [("learner memory", f"{text}; {need.published / GIB:,.2f} GiB of its host to publish")]


def check_staging(config: RunConfig) -> Iterator[Problem]:
    """Yield a note if engines pause while a version arrives, because their memory is limited to less."""
    need, weights = learner_needs(config), config.weights
    if need is None or config.rollout.engine != "vllm" or not weights.staging_mib:  # 0: engines may pause
        return
    if need.version > weights.staging_bytes:
        yield Problem(
            key="weights.staging_mib",
            reason=f"is {weights.staging_mib:g}, and a version has {need.version / MIB:,.0f} MiB: "
            "engines pause while it arrives, and no version is sent as a delta",
            remedy=f"raise it to {-(-need.version // MIB)}, if each process of an engine has so much host "
            "memory and half as much again",
            severity="note",
        )


def learner_needs(config: RunConfig) -> LearnerMemory | None:
    """Return the memory that the learner needs; None for a tiny model, or if its files cannot be read."""
    if config.model.path is None:
        return None
    paths = (config.model.path, *models_beside(config, config.model.path))
    policy, reference, critic = (model_size(path) if path else None for path in paths)
    if policy is None:
        return None
    return learner_memory(config, policy, ranks=config.learner.ranks, reference=reference, critic=critic)
