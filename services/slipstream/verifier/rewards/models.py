"""Models of our own machine as rewards."""

from collections.abc import Sequence
from importlib.util import find_spec

from slipstream.config.paths import located
from slipstream.config.rewards.models import ProcessRewardConfig, RewardModelConfig, ScoringModel
from slipstream.records import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.models.batches import Batches
from slipstream.verifier.reward import Answer, NotHere, Verdict
from slipstream.verifier.surroundings import Surroundings

NEEDED = ("torch", "transformers")


def reward_model(config: RewardModelConfig, surroundings: Surroundings) -> "Modelled":
    """The reward of a sequence classifier. Errors: NotHere for a missing model or library."""
    return Modelled(config, surroundings)


def process_reward(config: ProcessRewardConfig, surroundings: Surroundings) -> "Modelled":
    """The reward of a process reward model. Errors: NotHere for a missing model or library."""
    return Modelled(config, surroundings)


class Modelled:
    """Every answer by itself, several of them in one forward pass."""

    def __init__(self, config: ScoringModel, surroundings: Surroundings) -> None:
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise NotHere(
                f"needs {' and '.join(missing)}: pip install '.[reward-model]' in a clone of Slipstream, "
                "or in a pod the image of docker/verifier.Dockerfile (verifier.image of the chart)"
            )
        if not (config.path / "config.json").is_file():
            raise NotHere(
                f"path: {located(config.path)} has no config.json; name a Hugging Face model directory"
            )
        device = surroundings.config.device if config.device == "auto" else config.device
        self._batches = Batches(config.model_copy(update={"device": device}), log=surroundings.log)
        self._each = Concurrently(self._one, memory=surroundings.memory(config, reads=_reads))
        surroundings.starting.append(self._batches.start)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order."""
        return await self._each.score(prompt, answers)

    async def close(self) -> None:
        """End what is under way, and the model's process."""
        await self._each.close()
        await self._batches.close()

    async def _one(self, prompt: Prompt, answer: Answer) -> Verdict:
        return await self._batches.one(prompt, answer.text)


def _reads(prompt: Prompt) -> list[str]:
    return [prompt.text, *(part for turn in prompt.messages for part in (turn.role, turn.content))]
