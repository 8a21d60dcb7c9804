"""From a lease to a scored group: encode the prompt, sample its completions, have them scored."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from slipstream.records import Completion, Group, Lease, Purpose
from slipstream.rollout.engine import Engine, Sampling, Turn
from slipstream.rollout.environment import Environment, Sample
from slipstream.rollout.sampling_modes import PlainSampling, SamplingMode
from slipstream.rollout.step_labels import stable_seed
from slipstream.rollout.steps import with_token_ends
from slipstream.rollout.verifier_client import Scorer
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import PromptTooLong, Tokens

PLAIN = PlainSampling()


class GroupSampler:
    """Samples and scores the completions of a lease.

    `training` and `evaluating` are the sampling modes of training prompts and of held-out prompts. Nothing
    trains on evaluations, so they are sampled without top logprobs, whatever `sampling` says.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        engine: Engine,
        environment: Environment,
        tokens: Tokens,
        scorer: Scorer,
        sampling: Sampling,
        metrics: Metrics,
        log: Log,
        training: SamplingMode = PLAIN,
        evaluating: SamplingMode = PLAIN,
        seed: int | None = None,
    ) -> None:
        """`seed`: if set, the samples of a prompt depend only on the seed, the prompt and its dispatch index;
        None leaves them to chance."""
        self._worker_id = worker_id
        self._engine = engine
        self._environment = environment
        self._tokens = tokens
        self._scorer = scorer
        self._sampling = sampling
        self._metrics = metrics
        self._log = log
        self._modes: Mapping[Purpose, SamplingMode] = {
            Purpose.TRAINING: training,
            Purpose.EVALUATION: evaluating,
        }
        self._seed = seed

    async def sample_group(self, lease: Lease) -> Group:
        """Return the scored group of a lease; one without completions if the prompt is too long.

        Errors: EngineDied, and grpc.aio.AioRpcError of the scorer.
        """
        mode = self._modes[lease.purpose]
        completions: list[Completion] = []
        prompt_token_ids: tuple[int, ...] = ()
        try:
            prompt_token_ids = self._tokens.encode(mode.trained_prompt(lease.prompt))
            completions = await self._completions(lease, mode)
        except PromptTooLong as error:
            self._log.error("prompt skipped", group=lease.group_id, error=str(error))
        return Group(
            group_id=lease.group_id,
            lease_epoch=lease.lease_epoch,
            dispatch_index=lease.dispatch_index,
            prompt=lease.prompt,
            prompt_token_ids=prompt_token_ids,
            completions=tuple(completions),
            worker_id=self._worker_id,
        )

    async def _completions(self, lease: Lease, mode: SamplingMode) -> list[Completion]:
        """Return all completions of a group, scored. Errors: PromptTooLong, and those of `sample_group`."""
        generations = await self._generations(lease, mode)
        answers = [answer for each in generations for answer in mode.completions(lease.prompt, each)]
        completions = answers[: lease.group_size]
        if lease.purpose is Purpose.TRAINING:
            for completion in completions:
                self._metrics.observe("completion_tokens", len(completion.token_ids), kind="generated")
        with self._metrics.waiting("verifier"):
            scored = await self._scorer.score(lease.prompt, completions)
        return [with_token_ends(completion, self._tokens.decode) for completion in scored]

    async def _generations(self, lease: Lease, mode: SamplingMode) -> list[Completion]:
        """Sample all generations of a group at once; they share the prefill of the prompt in the prefix
        cache."""
        token_ids = self._tokens.encode(mode.sampled_prompt(lease.prompt))
        try:
            async with asyncio.TaskGroup() as members:
                runs = [
                    members.create_task(self._environment.run(lease.prompt, token_ids, sample))
                    for sample in self._samplers(lease, mode.generations(lease.group_size))
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [self._with_text(run.result()) for run in runs]

    def _samplers(self, lease: Lease, count: int) -> Iterator[Sample]:
        """Yield the `sample` function of each generation of a group."""
        sampling = self._sampling
        if lease.purpose is Purpose.EVALUATION:
            sampling = replace(sampling, top_logprobs=0)
        return (partial(self._sample, lease, member, sampling) for member in range(count))

    async def _sample(
        self, lease: Lease, member: int, sampling: Sampling, token_ids: tuple[int, ...]
    ) -> Turn:
        if self._seed is not None:
            seed = stable_seed(self._seed, lease.dispatch_index, member, len(token_ids))
            sampling = replace(sampling, seed=seed)
        turn = await self._engine.sample(token_ids, sampling)
        self._metrics.count("tokens_generated_total", len(turn.token_ids))
        return turn

    def _with_text(self, completion: Completion) -> Completion:
        self._metrics.count("completions_total", finish_reason=completion.finish_reason.value)
        self._metrics.observe("completion_versions", len({span.version for span in completion.spans}))
        return replace(completion, text=self._tokens.decode(completion.token_ids))
