"""A lower bound of the memory of a learner, from the sizes of its models. docs/learner.md has the formula.

The bound does not include activations, which depend on rows, lengths and kernels. So a learner that exceeds
the bound never fits, and one within it may still not fit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from slipstream.config.schema import RunConfig

FLOAT32: Final = 4
MOMENTS: Final = 2 * FLOAT32
DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2}


class Size(Protocol):
    """Parameters of a model; see slipstream.hub.safetensors_header."""

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""

    @property
    def layer(self) -> int:
        """Parameters of the largest layer."""

    @property
    def outside(self) -> int:
        """Parameters outside of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMemory:
    """Bytes of a learner, by use."""

    rank: Mapping[str, int]
    """Bytes on the device of each rank, by use."""
    version: int
    """Bytes of a version as it is published; 0 for adapters."""
    published: int
    """Bytes in host memory of all ranks together: the published version, and the log of its changes."""
    ranks: int
    shared: bool
    """Whether each rank publishes its own part, and not rank 0 everything."""

    @property
    def rank_bytes(self) -> int:
        """Bytes on the device of each rank."""
        return sum(self.rank.values())

    def published_on(self, local_ranks: int, *, first: bool = True) -> int:
        """Return the bytes of `published` on a machine with so many ranks; `first`: that of rank 0."""
        if self.shared:
            return self.published * local_ranks // self.ranks
        return self.published if first else 0


def has_reference(config: RunConfig) -> bool:
    """Return whether the run's algorithm measures a divergence to a reference policy."""
    loss = config.algorithm.resolved_loss(
        max_staleness=config.staleness.max_staleness, max_new_tokens=config.rollout.max_new_tokens
    )
    return loss.kl is not None or loss.needs_ref_logprobs


def models_beside(config: RunConfig, model: Path) -> tuple[Path | None, Path | None]:
    """Return the directories of the reference and the critic, which are loaded in addition to the policy.

    `model`: directory of the policy. A directory is None where no model is loaded: the policy without its
    adapters can be the reference, and the critic can be a head of the policy.
    """
    settings, critic = config.algorithm.reference, config.learner.critic
    is_policy = config.learner.lora is not None and settings.path is None and settings.kind != "ema"
    reference = (settings.path or model) if has_reference(config) and not is_policy else None
    backbone = (critic.path or model) if critic is not None and critic.kind == "model" else None
    return reference, backbone


def learner_memory(
    config: RunConfig,
    policy: Size,
    *,
    ranks: int,
    reference: Size | None = None,
    critic: Size | None = None,
) -> LearnerMemory:
    """Return the lower bound for a learner of `ranks` ranks.

    `reference`, `critic`: models that are loaded in addition to the policy. Adapters are small, and not
    counted.
    """
    wire = DTYPE_BYTES[config.model.dtype]
    lora = config.learner.lora
    adapted = lora is not None
    stored = wire if adapted else FLOAT32
    trained = (0 if adapted else policy.parameters) + (critic.parameters if critic else 0)
    beside = (reference.parameters if reference else 0) + (critic.parameters if critic else 0)
    needed = {
        "weights": (stored * policy.parameters + FLOAT32 * beside) // ranks,
        "gradients": FLOAT32 * trained // ranks,
        "moments": MOMENTS * trained // ranks,
        "gathered": _gathered(policy, stored, wire) if ranks > 1 else 0,
    }
    version = 0 if lora is not None and lora.serve == "adapter" else wire * policy.parameters
    return LearnerMemory(
        rank=needed,
        version=version,
        published=config.weights.published_bytes(version),
        ranks=ranks,
        shared=config.weights.every_rank_sends(version, ranks=ranks, adapted=adapted),
    )


def _gathered(policy: Size, stored: int, wire: int) -> int:
    """Return the bytes that FSDP gathers from other ranks: one buffer, and the parameters copied out of
    it."""
    outside = stored * policy.outside
    return max(2 * outside, outside + 2 * wire * policy.layer)
