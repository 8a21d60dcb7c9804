"""What happens to the version that a round has made: served by the workers, or measured apart from them."""

import asyncio

from slipstream.config import RunConfig
from slipstream.learner.broadcast.fleet import Fleet
from slipstream.learner.broadcast.publisher import Publisher
from slipstream.learner.broadcast.snapshot import Snapshot
from slipstream.learner.evaluation import Evaluator
from slipstream.learner.policy.model import Policy
from slipstream.learner.report import Report
from slipstream.learner.stages.warmup import sampled_accuracy
from slipstream.prompts import make_source
from slipstream.tokens import load_tokens


class ServedByWorkers:
    """The workers serve the policy, and answer the held-out prompts with it."""

    def __init__(self, snapshot: Snapshot, publisher: Publisher, evaluator: Evaluator) -> None:
        self._snapshot = snapshot
        self._publisher = publisher
        self._evaluator = evaluator

    async def publish(self, version: int) -> int:
        """Send it to every worker, while nobody else reads the snapshot; returns how many serve it."""
        await asyncio.to_thread(self._snapshot.take)
        published = await self._publisher.publish(version)
        return published.workers

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Ask the workers, through replay."""
        await self._evaluator.evaluate(version, stop)


class NothingTrained:
    """A stage that trains nothing: the workers go on with what they serve, and nothing is measured."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def publish(self, version: int) -> int:
        """Nothing: the policy is the same."""
        return len(self._fleet.members())

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Nothing: the answers that were labelled say how good the policy is."""


class MeasuredLocally:
    """The workers serve another model, the teacher, and go on with that; the policy is measured here."""

    def __init__(self, policy: Policy, config: RunConfig, *, fleet: Fleet, report: Report) -> None:
        self._policy = policy
        self._config = config
        self._fleet = fleet
        self._report = report

    async def publish(self, version: int) -> int:
        """Nothing: the teacher does not change."""
        return len(self._fleet.members())

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Sample from the policy in this process, while the teacher answers."""
        if stop.is_set():
            return
        accuracy, count = await asyncio.to_thread(self._measure)
        self._report.event(
            "evaluation", step=version, version=version, accuracy=accuracy, completions=count, errors=0
        )

    def _measure(self) -> tuple[float, int]:
        config = self._config
        tokens = load_tokens(config.model.directory(), max_new_tokens=config.rollout.max_new_tokens)
        return sampled_accuracy(self._policy, tokens, make_source(config.data, seed=config.seed), config)
