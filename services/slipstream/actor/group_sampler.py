"""From a lease to a scored group: encode the prompt, sample its completions, have them scored."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from slipstream.actor import environment, episode_run, sampling_modes, seeds, steps, verifier_client
from slipstream.actor.internal_errors import InternalErrors, is_internal
from slipstream.actor.sampler import Sampler, Watch
from slipstream.config.sources import BySource
from slipstream.records import Completion, Group, Lease, Prompt, Purpose, Sampling, Turn
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import PromptTooLong, Tokens

PLAIN = sampling_modes.PlainSampling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The completions of a lease before they are scored; none if the prompt is too long."""

    prompt_token_ids: tuple[int, ...]
    """The prompt with which the completions are trained."""
    completions: tuple[Completion, ...]


class GroupSampler:
    """Samples and scores the completions of a lease.

    `training` and `evaluating` are the sampling modes of training prompts and of held-out prompts. Nothing
    trains on evaluations, so they are sampled without top logprobs, whatever `sampling` says.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        environments: BySource[environment.BoundEnvironment],
        tokens: Tokens,
        scorer: verifier_client.Scorer,
        sampling: Sampling,
        metrics: Metrics,
        log: Log,
        training: sampling_modes.SamplingMode = PLAIN,
        evaluating: sampling_modes.SamplingMode = PLAIN,
        seed: int | None = None,
    ) -> None:
        """`environments`: by the source of a prompt. `seed`: if set, the samples of a prompt depend only on
        the seed, the prompt and its dispatch index; None leaves them to chance."""
        self._worker_id = worker_id
        self._environments = environments
        self._tokens = tokens
        self._scorer = scorer
        self._sampling = sampling
        self._metrics = metrics
        self._log = log
        self._modes: Mapping[Purpose, sampling_modes.SamplingMode] = {
            Purpose.TRAINING: training,
            Purpose.EVALUATION: evaluating,
        }
        self._seed = seed
        # Prometheus sees no rise in a counter that appears with its first event
        metrics.count("completions_continued_total", 0)
        metrics.count("environments_dropped_total", 0)
        for ending in episode_run.ENDINGS:
            metrics.count("episodes_total", 0, outcome=ending)
        self._internal_errors = InternalErrors(metrics=metrics, log=log)
        self._dropped_before: set[str] = set()
        """Environments of which it is logged that they ignored their cancellation."""

    async def generate(
        self, lease: Lease, sampler: Sampler, pause: episode_run.Pause = nullcontext
    ) -> Generated:
        """Sample the completions of a lease; none if the prompt is too long.

        `pause`: a context in which the time of the group stands still. Errors: those of `sampler`;
        UnknownSource if the run has no such source.
        """
        mode = self._modes[lease.purpose]
        try:
            prompt_token_ids = self._tokens.encode(mode.trained_prompt(lease.prompt))
            sampled_token_ids = self._tokens.encode(mode.sampled_prompt(lease.prompt))
        except PromptTooLong as error:
            self._log.error("prompt skipped", group=lease.group_id, error=str(error))
            return Generated(prompt_token_ids=(), completions=())
        generations = await self._generations(lease, mode, sampled_token_ids, sampler, pause)
        answers = [answer for each in generations for answer in mode.completions(lease.prompt, each)]
        completions = answers[: lease.group_size]
        if lease.purpose is Purpose.TRAINING:
            for completion in completions:
                self._metrics.observe("completion_tokens", completion.sampled, kind="generated")
        return Generated(prompt_token_ids=prompt_token_ids, completions=tuple(completions))

    async def score(self, lease: Lease, generated: Generated) -> Group:
        """Return the scored group.

        Errors: grpc.aio.AioRpcError of the scorer, RolloutsLost, SamplingRefused.
        """
        scored: list[Completion] = []
        if generated.completions:
            with self._metrics.waiting("verifier"):
                scored = await self._scorer.score(lease.prompt, generated.completions)
        return Group(
            group_id=lease.group_id,
            lease_epoch=lease.lease_epoch,
            dispatch_index=lease.dispatch_index,
            prompt=lease.prompt,
            prompt_token_ids=generated.prompt_token_ids,
            completions=tuple(
                steps.with_token_ends(completion, self._tokens.decode) for completion in scored
            ),
            worker_id=self._worker_id,
        )

    async def _generations(
        self,
        lease: Lease,
        mode: sampling_modes.SamplingMode,
        token_ids: tuple[int, ...],
        sampler: Sampler,
        pause: episode_run.Pause,
    ) -> list[Completion]:
        """Sample all generations of a group at once; they share the prefill of the prompt in the prefix
        cache."""
        try:
            async with asyncio.TaskGroup() as members:
                runs = [
                    members.create_task(self._play(lease.prompt, token_ids, sample, pause))
                    for sample in self._samples(lease, mode.generations(lease.group_size), sampler)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return [run.result() for run in runs]

    def _samples(self, lease: Lease, count: int, sampler: Sampler) -> Iterator[environment.Sample]:
        """Yield the `sample` function of each generation of a group."""
        sampling = self._sampling
        if lease.purpose is Purpose.EVALUATION:
            sampling = replace(sampling, top_logprobs=0)
        return (partial(self._sample, lease, member, sampling, sampler) for member in range(count))

    async def _sample(
        self,
        lease: Lease,
        member: int,
        sampling: Sampling,
        sampler: Sampler,
        token_ids: tuple[int, ...],
        max_tokens: int,
        watch: Watch | None = None,
    ) -> Turn:
        sampling = replace(sampling, max_tokens=max_tokens)
        if self._seed is not None:
            seed = seeds.stable_seed(self._seed, lease.dispatch_index, member, len(token_ids))
            sampling = replace(sampling, seed=seed)
        if watch is None:
            return await sampler.sample(token_ids, sampling)
        return await sampler.sample(token_ids, sampling, watch)

    async def _play(
        self, prompt: Prompt, token_ids: tuple[int, ...], sample: environment.Sample, pause: episode_run.Pause
    ) -> Completion:
        """Return the completion of one episode, with its text. Errors: those of `sample`; UnknownSource."""
        bound = self._environments.of(prompt.source)
        played = await episode_run.run_episode(
            bound.environment,
            prompt,
            token_ids,
            sample=sample,
            tokens=self._tokens,
            bounds=bound.bounds,
            group_pause=pause,
            on_dropped=partial(self._dropped, bound),
        )
        completion = played.completion
        if played.error is not None and is_internal(played.error):
            self._internal_errors.report("environment", played.error)
        self._metrics.count("episodes_total", outcome=played.ending)
        self._metrics.observe("episode_turns", played.turns)
        self._metrics.count("completions_total", finish_reason=completion.finish_reason.value)
        self._metrics.observe("completion_versions", len(completion.versions))
        if any(segment.engines > 1 for segment in completion.segments):
            self._metrics.count("completions_continued_total")
        return completion

    def _dropped(self, bound: environment.BoundEnvironment) -> None:
        """Count an episode whose environment ignored its cancellation; log it once for each environment."""
        self._metrics.count("environments_dropped_total")
        cls = type(bound.environment)
        name = f"{cls.__module__}:{cls.__qualname__}"
        if name in self._dropped_before:
            return
        self._dropped_before.add(name)
        self._log.error(
            "an environment did not end when it was cancelled, and was dropped",
            environment=name,
            seconds=bound.bounds.end_seconds,
            remedy="catch Exception in place of all errors, so that asyncio.CancelledError ends `run`, and "
            "await nothing long in its clean-up",
        )
