"""The update of the weights by their gradients: learning rate, clipping by norm, AdamW."""

from dataclasses import dataclass

import torch

from slipstream.config import LearnerConfig
from slipstream.learner.policy.model import whole
from slipstream.learner.training.models import Models
from slipstream.learner.training.schedule import learning_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorms:
    """Norms of the gradients before clipping, over all ranks."""

    policy: float
    critic: float | None
    """None without a critic."""


class Update:
    """Changes the policy, the critic and the reference."""

    def __init__(self, learner: LearnerConfig, models: Models) -> None:
        self._learner = learner
        self._models = models
        self.optimizer = torch.optim.AdamW(
            [parameter for _, parameter in models.policy.trained_parameters()],
            lr=learner.learning_rate,
            betas=learner.betas,
            weight_decay=learner.weight_decay,
        )

    def begin_step(self, step: int) -> float:
        """Set the learning rates of the step that makes version `step` (1 is the first).

        Return the rate of the policy.
        """
        learner = self._learner
        rate = learning_rate(step, peak=learner.learning_rate, steps=learner.steps, schedule=learner.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self._models.critic is not None:
            self._models.critic.begin_step(step)
        return rate

    def clip(self) -> GradientNorms:
        """Scale the gradients down to learner.max_grad_norm, of policy and critic separately."""
        parameters = [parameter for _, parameter in self._models.policy.trained_parameters()]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._learner.max_grad_norm)
        critic = self._models.critic
        return GradientNorms(policy=float(whole(norm)), critic=None if critic is None else critic.clip())

    def apply(self, norms: GradientNorms) -> None:
        """Change each model whose gradient is not 0. The policy stays while only the critic trains."""
        critic, reference = self._models.critic, self._models.reference
        if critic is not None and norms.critic:
            critic.optimizer.step()
        if not norms.policy or (critic is not None and critic.warming):
            return
        self.optimizer.step()
        if reference is not None:
            reference.follow(self._models.policy)

    def forget_gradients(self) -> None:
        """Free the gradients."""
        self.optimizer.zero_grad(set_to_none=True)
        if self._models.critic is not None:
            self._models.critic.optimizer.zero_grad(set_to_none=True)
