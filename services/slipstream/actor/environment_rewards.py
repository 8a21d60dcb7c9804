"""The reward `environment`: a value that the environment of an episode gave under the name of the reward."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slipstream.actor.verifier_client import Scorer
from slipstream.config.rewards import EnvironmentRewardConfig, RewardConfig
from slipstream.config.sources import BySource
from slipstream.records import Completion, Outcome, Prompt, Reward
from slipstream.telemetry.metrics import Metrics


class EnvironmentRewards:
    """Scores by another scorer, and adds the values of the environment where the configuration lists them.

    Invariants: a completion that its environment withheld is not scored, and keeps the reason; a vector has
    the rewards that apply to the source of the prompt, in the order of the configuration.
    The verifier's scores of steps are dropped where an environment of several turns may set the answer: they
    are steps of a text that is not that of the tokens.
    """

    def __init__(
        self,
        scorer: Scorer,
        rewards: Sequence[RewardConfig],
        *,
        metrics: Metrics,
        keeps_steps: BySource[bool],
    ) -> None:
        """`rewards`: of the run. `keeps_steps`: whether the verifier's steps are steps of the tokens, as they
        are with single turns."""
        self._scorer = scorer
        self._order = {reward.name: position for position, reward in enumerate(rewards)}
        self._rewards = [reward for reward in rewards if isinstance(reward, EnvironmentRewardConfig)]
        self._keeps_steps = keeps_steps
        self._metrics = metrics
        for reward in self._rewards:
            for outcome in Outcome:
                metrics.count("scores_total", 0, reward=reward.name, outcome=outcome.value)

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """Return the completions with complete reward vectors. `completions` have the values of their
        environments as rewards. Errors: those of the other scorer; UnknownSource."""
        played = [completion for completion in completions if not completion.withheld]
        scored = iter(
            await self._scorer.score(prompt, [replace(each, rewards=()) for each in played]) if played else ()
        )
        return [
            completion if completion.withheld else self._with_values(prompt, next(scored), completion.rewards)
            for completion in completions
        ]

    def _with_values(
        self, prompt: Prompt, scored: Completion, from_environment: Sequence[Reward]
    ) -> Completion:
        if not self._keeps_steps.of(prompt.source):
            scored = replace(scored, rewards=tuple(replace(reward, steps=()) for reward in scored.rewards))
        names = [reward.name for reward in self._rewards if reward.applies_to(prompt.source)]
        if scored.withheld or not names:
            return scored
        values = {reward.name: reward for reward in from_environment}
        vector = [*scored.rewards, *(self._reward(name, values) for name in names)]
        return replace(scored, rewards=tuple(sorted(vector, key=lambda reward: self._order[reward.name])))

    def _reward(self, name: str, values: Mapping[str, Reward]) -> Reward:
        others = ", ".join(sorted(values)) or "none"
        detail = f"the environment set no episode.rewards[{name!r}]; it set: {others}"
        missing = Reward(name=name, value=0.0, outcome=Outcome.ERROR, detail=detail)
        reward = values.get(name, missing)
        self._metrics.count("scores_total", reward=name, outcome=reward.outcome.value)
        return reward
