"""Delivery of the version that a round has made: to the rollouts, or to an evaluation in this process."""

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


class ServedByRollouts:
    """The rollouts serve the policy, and answer the held-out prompts with it."""

    def __init__(self, snapshot: Snapshot, publisher: Publisher, evaluator: Evaluator) -> None:
        self._snapshot = snapshot
        self._publisher = publisher
        self._evaluator = evaluator

    async def publish(self, version: int) -> int:
        """Send the version to all rollouts; return how many serve it. Nothing else may read the snapshot."""
        await asyncio.to_thread(self._snapshot.take)
        published = await self._publisher.publish(version)
        return published.rollouts

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Evaluate on the rollouts, through replay."""
        await self._evaluator.evaluate(version, stop)


class NothingTrained:
    """A stage that trains nothing: the rollouts keep their version, and there is no evaluation."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def publish(self, version: int) -> int:
        """Send nothing, because the policy has not changed; return the number of rollouts."""
        return len(self._fleet.members())

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Do nothing: the labelled answers show the accuracy of the policy."""


class MeasuredLocally:
    """The rollouts serve a teacher, so the weights of the policy are not published.

    The policy is evaluated in this process, because no rollout has its weights.
    """

    def __init__(self, policy: Policy, config: RunConfig, *, fleet: Fleet, report: Report) -> None:
        self._policy = policy
        self._config = config
        self._fleet = fleet
        self._report = report

    async def publish(self, version: int) -> int:
        """Send nothing, because the teacher does not change; return the number of rollouts."""
        return len(self._fleet.members())

    async def evaluate(self, version: int, stop: asyncio.Event) -> None:
        """Sample from the policy in this process, and report its accuracy."""
        if stop.is_set():
            return
        accuracy, count = await asyncio.to_thread(self._measure)
        self._report.event(
            "evaluation", step=version, version=version, accuracy=accuracy, completions=count, errors=0
        )

    def _measure(self) -> tuple[float, int]:
        config = self._config
        tokens = load_tokens(config.model.directory(), max_new_tokens=config.rollout.max_new_tokens)
        source = make_source(config.data, seed=config.seed)
        return sampled_accuracy(self._policy, tokens, source, config.rollout)
