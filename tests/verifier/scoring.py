"""A scorer with its metrics and its log, and single answers, for the tests of the verifier."""

import asyncio
import io
from collections.abc import Mapping, Sequence

from slipstream.config import VerifierConfig
from slipstream.config.rewards import RewardSection
from slipstream.records import FinishReason, Prompt
from slipstream.records import Reward as Component
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.programs import ProgramLimits, Programs
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward
from slipstream.verifier.rewards.bind import bind_rewards
from slipstream.verifier.scorer import Scorer


class Bench:
    """Rewards with their resources; `lines` is the log."""

    def __init__(
        self,
        configs: Sequence[RewardSection] = (),
        *,
        rewards: Mapping[str, Reward] | None = None,
        config: VerifierConfig | None = None,
        programs: ProgramLimits | None = None,
    ) -> None:
        self.config = config or VerifierConfig(workers=2)
        self.metrics = Metrics()
        self.lines = io.StringIO()
        log = Log(pod="verifier", stream=self.lines)
        self.resources = Resources.make(self.config, metrics=self.metrics, log=log)
        bound = bind_rewards(configs, self.resources) if rewards is None else rewards
        self.scorer = Scorer(bound, queue=self.resources.queue, metrics=self.metrics, log=log)
        self.programs = Programs(
            self.resources.sandbox, limits=programs, queue=self.resources.queue, metrics=self.metrics
        )

    async def __aenter__(self) -> "Bench":
        await self.resources.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scorer.close()
        await self.resources.close()

    def sample(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric; `name` lacks the common prefix."""
        return self.metrics.registry.get_sample_value(f"slipstream_{name}", labels)


def answer(text: str, finish: FinishReason = FinishReason.STOP) -> Answer:
    """Return an answer of one token."""
    return Answer(text=text, tokens=1, finish_reason=finish)


def scores(config: RewardSection, prompt: Prompt, *answers: Answer) -> list[Component]:
    """Score the answers of a group with one configured reward, and return their components."""

    async def once() -> list[Component]:
        async with Bench([config]) as bench:
            return [vector[0] for vector in await bench.scorer.score(prompt, answers)]

    return asyncio.run(once())
