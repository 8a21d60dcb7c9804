"""The rewards `reward_model` and `process_reward`: models on this machine."""

from collections.abc import Sequence

from slipstream.config.paths import located
from slipstream.config.rewards.models import ProcessRewardConfig, RewardModelConfig, ScoringModel
from slipstream.records import Prompt
from slipstream.verifier import adapters, missing_resource, reward
from slipstream.verifier.models.batches import Batches
from slipstream.verifier.resources import Resources


def reward_model(config: RewardModelConfig, resources: Resources) -> "Modelled":
    """Make the reward of a sequence classifier. Errors: MissingResource if there is no model at `path`."""
    return Modelled(config, resources)


def process_reward(config: ProcessRewardConfig, resources: Resources) -> "Modelled":
    """Make the reward of a process reward model. Errors: MissingResource if there is no model at `path`."""
    return Modelled(config, resources)


class Modelled:
    """Scores answers by a model in a process of its own, several answers in one forward pass."""

    def __init__(self, config: ScoringModel, resources: Resources) -> None:
        if not (config.path / "config.json").is_file():
            raise missing_resource.MissingResource(
                f"{located(config.path)} has no config.json",
                key="path",
                remedy="name a Hugging Face model directory",
            )
        device = resources.config.device if config.device == "auto" else config.device
        self._batches = Batches(config.model_copy(update={"device": device}), log=resources.log)
        self._each = adapters.Concurrently(self._one, cache=resources.reward_cache(config, reads=_reads))
        resources.starting.append(self._batches.start)

    async def score(self, prompt: Prompt, answers: Sequence[reward.Answer]) -> list[reward.Verdict]:
        """Return the verdicts, in order."""
        return await self._each.score(prompt, answers)

    async def close(self) -> None:
        """Cancel running calls, and end the process of the model."""
        await self._each.close()
        await self._batches.close()

    async def _one(self, prompt: Prompt, answer: reward.Answer) -> reward.Verdict:
        return await self._batches.one(prompt, answer.text)


def _reads(prompt: Prompt) -> list[str]:
    return [prompt.text, *(part for turn in prompt.messages for part in (turn.role, turn.content))]
