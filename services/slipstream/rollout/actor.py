"""The actor loop: lease, generate, score, insert; many groups at a time, nobody waits for the slowest.

    lease loop ──▶ one task a group: place ─▶ environment × group_size ─▶ verifier ─▶ free the place ─▶ replay
        ▲                                                                                  │
        └──────────── fewer groups in the making than places, and a few leases ahead ◀─────┘
    heartbeat ──▶ replay, every few seconds: keeps all leases, and cancels the tasks of those that are lost

The lease loop waits for a served version, then until it wants a lease, then for admission (replay, bounded).
A task waits for a place, then for the engine and the verifier (at most rollout.group_timeout_seconds in all),
then for replay. When the actor is stopped no more is leased, and tasks may finish for a while (the drain);
then they are cancelled, which aborts their requests, and their leases are returned.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import grpc

from slipstream.records import Completion, Group, Lease, Outcome, Purpose
from slipstream.rollout.engine import Engine, EngineDied, Sampling, Turn
from slipstream.rollout.environment import Environment, Sample
from slipstream.rollout.heartbeat import Heartbeat
from slipstream.rollout.lease_prefetch import LeasePrefetch
from slipstream.rollout.replay_client import LeaseName, ReplayClient
from slipstream.rollout.sampling_modes import PlainSampling, SamplingMode
from slipstream.rollout.served_version import ServedVersion
from slipstream.rollout.step_labels import stable_seed
from slipstream.rollout.steps import with_token_ends
from slipstream.rollout.verifier_client import Scorer
from slipstream.rpc.errors import SlipstreamError, Unreachable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import PromptTooLong, Tokens

LEASE_WAIT_SECONDS = 1.0
PAUSE_AFTER_FAILURE_SECONDS = 0.5
ANSWER_SECONDS = 1.0
"""Longest that a stop waits for leases whose answer may be under way, beyond the wait for admission."""
PLAIN = PlainSampling()
LOST = ("lease_lost", "group_timeout", "unreachable")
DRAINED = ("finished", "returned")


@dataclass(slots=True, eq=False)
class Work:
    """A lease on its way to an insert."""

    lease: Lease
    made: bool = False
    """Generated and scored: it needs no place any more."""


class Actor:
    """Generates at most `max_groups` groups at a time; each lease ends as an insert, a return, or an expiry.

    `training` and `evaluating` are how prompts to train on and held-out ones are asked. Nobody trains on
    evaluations, so they are sampled without the top logprobs that `sampling` may ask for.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        engine: Engine,
        environment: Environment,
        tokens: Tokens,
        replay: ReplayClient,
        verifier: Scorer,
        served: ServedVersion,
        sampling: Sampling,
        max_groups: int,
        group_timeout_seconds: float,
        heartbeat_seconds: float,
        metrics: Metrics,
        log: Log,
        training: SamplingMode = PLAIN,
        evaluating: SamplingMode = PLAIN,
        seed: int | None = None,
    ) -> None:
        """`seed`: makes what is sampled for a prompt a function of it and of the prompt's place; None does
        not."""
        self._worker_id = worker_id
        self._engine = engine
        self._environment = environment
        self._tokens = tokens
        self._replay = replay
        self._verifier = verifier
        self._served = served
        self._sampling = sampling
        self._max_groups = max_groups
        self._metrics = metrics
        self._log = log
        self._clients = {Purpose.TRAINING: training, Purpose.EVALUATION: evaluating}
        self._seed = seed
        self._group_timeout = group_timeout_seconds
        self._works: dict[asyncio.Task[None], Work] = {}
        self._places = asyncio.Semaphore(max_groups)
        self._progress = asyncio.Event()
        self._ahead = LeasePrefetch(most=max_groups)
        self._heartbeat = Heartbeat(
            replay=replay,
            served=served,
            seconds=heartbeat_seconds,
            held=self._held,
            lose=self._lose,
            log=log,
        )
        self._asking: asyncio.Task[list[Lease]] | None = None
        for reason in LOST:  # a counter that begins at its first event hides that event from a rate
            metrics.count("groups_lost_total", 0, reason=reason)
        for outcome in DRAINED:
            metrics.count("drained_groups_total", 0, outcome=outcome)

    @property
    def groups_running(self) -> int:
        """Groups that are not handed in yet; may be asked from another thread."""
        return sum(not task.done() for task in list(self._works))

    async def run(self, stop: asyncio.Event, *, drain_seconds: float = 0.0) -> None:
        """Work until `stop`, finish what runs for at most `drain_seconds`, and return the rest.

        A cancellation returns everything at once. Errors: EngineDied.
        """
        leasing = asyncio.create_task(self._keep_leasing())
        beating = asyncio.create_task(self._heartbeat.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((leasing, beating, stopping), return_when=asyncio.FIRST_COMPLETED)
            for loop in (leasing, beating):
                if loop.done():
                    loop.result()
            leasing.cancel()
            await asyncio.gather(self._drain(drain_seconds), self._return_late())
        finally:
            for task in (leasing, beating, stopping):
                task.cancel()
            await asyncio.gather(leasing, beating, stopping, return_exceptions=True)
            await self._hand_back()

    async def _keep_leasing(self) -> None:
        try:
            while True:
                await self._until_serving()
                wanted = await self._want_leases()
                leases = await self._lease(wanted)
                for lease in leases:
                    self._begin(lease)
                self._asking = None
                if leases:
                    self._heartbeat.soon()
        finally:
            self._metrics.set("places", 0)

    def _begin(self, lease: Lease) -> None:
        work = Work(lease)
        task = asyncio.create_task(self._work(work))
        task.add_done_callback(lambda _: self._progress.set())
        self._works[task] = work
        self._metrics.set("groups_running", self._unmade)

    @property
    def _unmade(self) -> int:
        """Groups that are generated or scored, or wait for a place."""
        return sum(not (work.made or task.done()) for task, work in self._works.items())

    def _held(self) -> list[Lease]:
        return [work.lease for task, work in self._works.items() if not task.done()]

    async def _drain(self, seconds: float) -> None:
        """Let running groups finish, for at most `seconds`."""
        working = [task for task in self._works if not task.done()]
        if not working or not seconds:
            return
        self._log.info("draining", groups=len(working), seconds=seconds)
        with self._metrics.waiting("drain"):
            done, _ = await asyncio.wait(working, timeout=seconds)
        finished = [task for task in done if _worked(task)]
        self._metrics.count("drained_groups_total", len(finished), outcome="finished")

    async def _until_serving(self) -> None:
        """Wait for a verified version; only with one there are places."""
        if not self._served.serving:
            self._metrics.set("places", 0)
        with self._metrics.waiting("first_version"):
            await self._served.wait()
        self._metrics.set("places", self._max_groups)

    async def _lease(self, wanted: int) -> list[Lease]:
        self._metrics.set("places_waiting", max(0, self._max_groups - self._unmade))
        try:
            with self._metrics.waiting("admission"):
                self._asking = asyncio.create_task(
                    self._replay.lease(
                        max_prompts=wanted,
                        wait_seconds=LEASE_WAIT_SECONDS,
                        serving_version=self._served.version,
                    )
                )
                return await asyncio.shield(self._asking)
        except (Unreachable, grpc.aio.AioRpcError) as error:
            self._log.warning("no leases", error=_said(error))
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
            return []
        finally:
            self._metrics.set("places_waiting", 0)

    async def _want_leases(self) -> int:
        """Wait until fewer groups are in the making than wanted; how many fewer. Errors: those of a task."""
        while True:
            self._progress.clear()
            for task in [task for task in self._works if task.done()]:
                if not task.cancelled():
                    task.result()
                del self._works[task]
            self._metrics.set("groups_running", self._unmade)
            ahead = self._ahead.groups(self._heartbeat.round_trip_seconds)
            wanted = self._max_groups + ahead - self._unmade
            if wanted > 0 and len(self._works) < 2 * self._max_groups + ahead:
                return wanted
            with self._metrics.waiting("free_place"):
                await self._progress.wait()

    async def _work(self, work: Work) -> None:
        """One group, from its prompt to replay; what cannot be made is counted, and returned as a fault."""
        lease = work.lease
        try:
            async with self._places:
                async with asyncio.timeout(self._group_timeout):
                    group = await self._make(lease)
            work.made = True
            self._ahead.finished()
            self._progress.set()
            outcome = await self._replay.insert(group)
            self._log.debug("inserted", group=lease.group_id, outcome=outcome.value)
        except TimeoutError:
            detail = f"not finished in {self._group_timeout:g} s (rollout.group_timeout_seconds)"
            await self._fail(lease, "group_timeout", detail)
        except Unreachable as error:
            self._count_lost(lease, "unreachable", str(error))
        except grpc.aio.AioRpcError as error:
            await self._fail(lease, error.code().name.lower(), error.details() or "")

    async def _make(self, lease: Lease) -> Group:
        client = self._clients[lease.purpose]
        completions: list[Completion] = []
        prompt_token_ids: tuple[int, ...] = ()
        try:
            prompt_token_ids = self._tokens.encode(client.trained_prompt(lease.prompt))
            completions = await self._generate(lease, client)
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

    async def _generate(self, lease: Lease, client: SamplingMode) -> list[Completion]:
        """All completions of a group, scored. They share the prompt's prefill through the prefix cache.

        Errors: PromptTooLong.
        """
        asked = self._tokens.encode(client.sampled_prompt(lease.prompt))
        try:
            async with asyncio.TaskGroup() as members:
                runs = [
                    members.create_task(self._environment.run(lease.prompt, asked, sample))
                    for sample in self._samplers(lease, client.generations(lease.group_size))
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        generations = [self._with_text(run.result()) for run in runs]
        answers = [answer for one in generations for answer in client.completions(lease.prompt, one)]
        completions = answers[: lease.group_size]
        if lease.purpose is Purpose.TRAINING:
            for completion in completions:
                self._metrics.observe("completion_tokens", len(completion.token_ids), kind="generated")
        with self._metrics.waiting("verifier"):
            scored = await self._verifier.score(lease.prompt, completions)
        self._look_for_failure(scored)
        return [with_token_ends(completion, self._tokens.decode) for completion in scored]

    def _samplers(self, lease: Lease, count: int) -> Iterator[Sample]:
        """How each generation of a group is sampled."""
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

    def _look_for_failure(self, completions: Sequence[Completion]) -> None:
        """Tell replay what keeps completions from being scored."""
        failed = (r for c in completions for r in c.rewards if r.outcome is Outcome.ERROR)
        if reward := next(failed, None):
            self._heartbeat.report_failure(f"{reward.name}: {reward.detail}")

    def _lose(self, name: LeaseName) -> None:
        """Replay has taken the lease away: stop working on it. A group that is made is offered all the same:
        replay may have taken it already, and its answer be under way."""
        for task, work in self._works.items():
            if (work.lease.group_id, work.lease.lease_epoch) == name and not (work.made or task.done()):
                self._count_lost(work.lease, "lease_lost", "no heartbeat arrived in time")
                task.cancel()

    async def _fail(self, lease: Lease, fault: str, detail: str) -> None:
        """Return the lease as a fault of the prompt or of this worker: another worker gets it at once."""
        self._count_lost(lease, fault, detail)
        try:
            await self._replay.return_leases([lease], fault=fault)
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._log.warning("lease not returned; it expires", group=lease.group_id, error=_said(error))

    def _count_lost(self, lease: Lease, reason: str, detail: str) -> None:
        self._metrics.count("groups_lost_total", reason=reason)
        self._log.warning("group lost", group=lease.group_id, reason=reason, detail=detail)

    async def _hand_back(self) -> None:
        """Cancel what runs and return its leases, and those of what failed: others get them at once."""
        died = [work.lease for task, work in self._works.items() if _died(task)]
        unfinished = [work.lease for task, work in self._works.items() if not (_worked(task) or _died(task))]
        unfinished += await self._leased_too_late()
        for task in self._works:
            task.cancel()
        outcomes = await asyncio.gather(*self._works, return_exceptions=True)
        for work, outcome in zip(self._works.values(), outcomes, strict=True):
            if isinstance(outcome, Exception):
                error = f"{type(outcome).__name__}: {outcome}"
                self._log.error("group failed", group=work.lease.group_id, error=error)
        await self._return(unfinished)
        await self._return(died, fault="engine_died")

    async def _return(self, leases: Sequence[Lease], *, fault: str = "") -> None:
        if not leases:
            return
        try:
            returned = await self._replay.return_leases(leases, fault=fault)
        except (SlipstreamError, grpc.aio.AioRpcError) as error:
            self._log.warning("leases not returned; they expire", leases=len(leases), error=_said(error))
        else:
            self._metrics.count("drained_groups_total", returned, outcome="returned")
            self._log.info("leases returned", leases=returned)

    async def _return_late(self) -> None:
        await self._return(await self._leased_too_late())

    async def _leased_too_late(self) -> list[Lease]:
        """What the call brings that was under way when the leasing ended; it has a bound of its own."""
        asking, self._asking = self._asking, None
        if asking is None:
            return []
        await asyncio.wait((asking,), timeout=LEASE_WAIT_SECONDS + ANSWER_SECONDS)
        if asking.done() and asking.exception() is None:
            return asking.result()
        asking.cancel()
        return []


def _worked(task: asyncio.Task[None]) -> bool:
    """Whether a group's task has come to its end."""
    return task.done() and not task.cancelled() and task.exception() is None


def _died(task: asyncio.Task[None]) -> bool:
    """Whether a group's task ended with the engine."""
    return task.done() and not task.cancelled() and isinstance(task.exception(), EngineDied)


def _said(error: SlipstreamError | grpc.aio.AioRpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
