"""The reference policy of KL terms: a frozen model, or a running average of the policy."""

import torch
from torch.distributed.device_mesh import DeviceMesh

from slipstream.config import LearnerConfig, RunConfig, learner_memory
from slipstream.learner.policy import loading, lora, model


class Reference:
    """A policy that is never optimised. With decay d, after each update: ref <- d ref + (1 - d) policy."""

    def __init__(self, policy: model.Policy, *, decay: float | None) -> None:
        self.policy = policy
        self.decay = decay

    @property
    def moves(self) -> bool:
        """Whether it changes, and so is a part of checkpoints.

        A frozen reference is loaded from its source.
        """
        return self.decay is not None

    def follow(self, policy: model.Policy) -> None:
        """Move an averaged reference towards the policy; do nothing for a frozen one."""
        if self.decay is None:
            return
        with torch.no_grad():
            for own, current in zip(self.policy.model.parameters(), policy.model.parameters(), strict=True):
                own.lerp_(current, 1 - self.decay)


def load_reference(
    config: RunConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    policy: model.Policy | None = None,
    mesh: DeviceMesh | None = None,
) -> Reference | None:
    """Load the reference; None if the algorithm has none.

    It starts as the model of the run, or of algorithm.reference.path. If only adapters of `policy` train, it
    is `policy` without adapters, and no second copy is loaded. mesh: as in load_policy.
    Errors: those of load_policy.
    """
    settings = config.algorithm.reference
    if not learner_memory.has_reference(config):
        return None
    source = settings.path or config.model.directory()
    averaged = settings.kind == "ema"
    if isinstance(policy, lora.LoraPolicy) and settings.path is None and not averaged:
        return Reference(policy.without_adapters(), decay=None)

    def frozen(own: model.Policy) -> model.Policy:
        own.model.requires_grad_(False)
        return own

    own = loading.load_policy(source, source=source, device=device, dtype=dtype, mesh=mesh, around=frozen)
    if policy is not None:
        _check_fits(own, policy, config.learner)
    return Reference(own, decay=settings.decay if averaged else None)


def _check_fits(reference: model.Policy, policy: model.Policy, learner: LearnerConfig) -> None:
    sizes = [int(each.model.config.get_text_config().vocab_size) for each in (reference, policy)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"algorithm.reference.path: {reference.source} has a vocabulary of {sizes[0]} tokens, and the "
            f"policy one of {sizes[1]}; name a model with the policy's tokenizer"
        )
    if learner.share_prompts and not reference.attends_fully():
        raise ValueError(
            f"algorithm.reference.path: {reference.source} has not full attention in every layer, which "
            "learner.share_prompts needs; set that to false"
        )
