"""The actor loop: lease, generate, score, insert; many groups at a time, nobody waits for the slowest.

    lease loop ──▶ one task a group: environment × group_size ──▶ verifier ──▶ replay
        ▲                                   │ done, lost or cancelled
        └────────── a free place ◀──────────┘

The lease loop waits for a served version, then for a free place (a task that ends), then for admission
(replay, bounded). A task waits for the engine and the verifier, and at most until its lease ends. When the
actor is stopped no more is leased, and tasks may finish for a while (the drain); then they are cancelled,
which aborts their requests, and their leases are returned.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import grpc

from slipstream.rollout.clients import ReplayClient
from slipstream.rollout.engine import Engine, Sampling, Turn
from slipstream.rollout.environment import Environment
from slipstream.rollout.fleet import ServedVersion
from slipstream.rollout.self_judge import Scores
from slipstream.rollout.verbalized import Client, Plain
from slipstream.rpc.errors import SlipstreamError, Unreachable
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import PromptTooLong, Tokens
from slipstream.types import Completion, Group, Lease, Purpose

LEASE_WAIT_SECONDS = 1.0
PAUSE_AFTER_FAILURE_SECONDS = 0.5
ANSWER_SECONDS = 1.0
"""Longest that a stop waits for leases whose answer may be under way, beyond the wait for admission."""
PLAIN = Plain()
LOST = ("lease_expired", "unreachable")
DRAINED = ("finished", "returned")


class Actor:
    """Holds at most `max_groups` leases; each ends as an insert, a return, or an expiry.

    `evaluating` is how held-out prompts are asked; prompts to train on are asked as they stand.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        engine: Engine,
        environment: Environment,
        tokens: Tokens,
        replay: ReplayClient,
        verifier: Scores,
        served: ServedVersion,
        sampling: Sampling,
        max_groups: int,
        metrics: Metrics,
        log: Log,
        evaluating: Client = PLAIN,
    ) -> None:
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
        self._evaluating = evaluating
        self._running: dict[asyncio.Task[None], Lease] = {}
        self._asking: asyncio.Task[list[Lease]] | None = None
        for reason in LOST:  # a counter that begins at its first event hides that event from a rate
            metrics.count("groups_lost_total", 0, reason=reason)
        for outcome in DRAINED:
            metrics.count("drained_groups_total", 0, outcome=outcome)

    @property
    def groups_running(self) -> int:
        """Groups in the making; may be asked from another thread."""
        return sum(not task.done() for task in list(self._running))

    async def run(self, stop: asyncio.Event, *, drain_seconds: float = 0.0) -> None:
        """Work until `stop`, finish what runs for at most `drain_seconds`, and return the rest.

        A cancellation returns everything at once. Errors: EngineDied.
        """
        leasing = asyncio.create_task(self._keep_leasing())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((leasing, stopping), return_when=asyncio.FIRST_COMPLETED)
            if leasing.done():
                leasing.result()
            leasing.cancel()
            await asyncio.gather(self._drain(drain_seconds), self._return_late())
        finally:
            for task in (leasing, stopping):
                task.cancel()
            await asyncio.gather(leasing, stopping, return_exceptions=True)
            await self._hand_back()

    async def _keep_leasing(self) -> None:
        try:
            while True:
                await self._until_serving()
                await self._free_place()
                for lease in await self._lease():
                    self._running[asyncio.create_task(self._work(lease))] = lease
                self._asking = None
                self._metrics.set("groups_running", len(self._running))
        finally:
            self._metrics.set("places", 0)

    async def _drain(self, seconds: float) -> None:
        """Let running groups finish, for at most `seconds`."""
        working = [task for task in self._running if not task.done()]
        if not working or not seconds:
            return
        self._log.info("draining", groups=len(working), seconds=seconds)
        with self._metrics.waiting("drain"):
            done, _ = await asyncio.wait(working, timeout=seconds)
        finished = [task for task in done if task.exception() is None]
        self._metrics.count("drained_groups_total", len(finished), outcome="finished")

    async def _until_serving(self) -> None:
        """Wait for a verified version; only with one there are places."""
        if not self._served.serving:
            self._metrics.set("places", 0)
        with self._metrics.waiting("first_version"):
            await self._served.wait()
        self._metrics.set("places", self._max_groups)

    async def _lease(self) -> list[Lease]:
        free = self._max_groups - len(self._running)
        self._metrics.set("places_waiting", free)
        try:
            with self._metrics.waiting("admission"):
                self._asking = asyncio.create_task(
                    self._replay.lease(
                        max_prompts=free,
                        wait_seconds=LEASE_WAIT_SECONDS,
                        serving_version=self._served.version,
                    )
                )
                return await asyncio.shield(self._asking)
        except grpc.aio.AioRpcError as error:
            self._log.warning("no leases", code=error.code().name, detail=error.details())
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
            return []
        finally:
            self._metrics.set("places_waiting", 0)

    async def _free_place(self) -> None:
        """Forget finished tasks, and wait for one when there is no room. Errors: those of a task."""
        while True:
            for task in [task for task in self._running if task.done()]:
                task.result()
                del self._running[task]
            self._metrics.set("groups_running", len(self._running))
            if len(self._running) < self._max_groups:
                return
            with self._metrics.waiting("free_place"):
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def _work(self, lease: Lease) -> None:
        """One group, from its prompt to replay; what cannot be handed in is counted and expires there."""
        try:
            async with asyncio.timeout(lease.seconds):
                group = await self._make(lease)
                outcome = await self._replay.insert(group)
            self._log.debug("inserted", group=lease.group_id, outcome=outcome.value)
        except TimeoutError:
            self._lost(lease, "lease_expired", f"not finished in {lease.seconds:g} s")
        except Unreachable as error:
            self._lost(lease, "unreachable", str(error))
        except grpc.aio.AioRpcError as error:
            self._lost(lease, error.code().name.lower(), error.details() or "")

    async def _make(self, lease: Lease) -> Group:
        client = self._evaluating if lease.purpose is Purpose.EVALUATION else PLAIN
        completions: list[Completion] = []
        prompt_token_ids: tuple[int, ...] = ()
        try:
            prompt_token_ids = self._tokens.encode(client.ask(lease.prompt))
            completions = await self._generate(lease, prompt_token_ids, client)
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

    async def _generate(
        self, lease: Lease, prompt_token_ids: tuple[int, ...], client: Client
    ) -> list[Completion]:
        """All completions of a group, scored. They share the prompt's prefill through the prefix cache."""
        try:
            async with asyncio.TaskGroup() as members:
                runs = [
                    members.create_task(self._environment.run(lease.prompt, prompt_token_ids, self._sample))
                    for _ in range(lease.group_size)
                ]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        completions = [self._with_text(run.result(), client) for run in runs]
        if lease.purpose is Purpose.TRAINING:
            for completion in completions:
                self._metrics.observe("completion_tokens", len(completion.token_ids), kind="generated")
        with self._metrics.waiting("verifier"):
            return await self._verifier.score(lease.prompt, completions)

    async def _sample(self, token_ids: tuple[int, ...]) -> Turn:
        turn = await self._engine.sample(token_ids, self._sampling)
        self._metrics.count("tokens_generated_total", len(turn.token_ids))
        return turn

    def _with_text(self, completion: Completion, client: Client) -> Completion:
        self._metrics.count("completions_total", finish_reason=completion.finish_reason.value)
        self._metrics.observe("completion_versions", len({span.version for span in completion.spans}))
        return replace(completion, text=client.answer(self._tokens.decode(completion.token_ids)))

    def _lost(self, lease: Lease, reason: str, detail: str) -> None:
        self._metrics.count("groups_lost_total", reason=reason)
        self._log.warning("group lost", group=lease.group_id, reason=reason, detail=detail)

    async def _hand_back(self) -> None:
        """Cancel what runs and return its leases, and those of what failed: others get them at once."""
        unfinished = [lease for task, lease in self._running.items() if not _worked(task)]
        unfinished += await self._leased_too_late()
        for task in self._running:
            task.cancel()
        outcomes = await asyncio.gather(*self._running, return_exceptions=True)
        for lease, outcome in zip(self._running.values(), outcomes, strict=True):
            if isinstance(outcome, Exception):
                error = f"{type(outcome).__name__}: {outcome}"
                self._log.error("group failed", group=lease.group_id, error=error)
        await self._return(unfinished)

    async def _return(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        try:
            returned = await self._replay.give_back(leases)
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


def _said(error: SlipstreamError | grpc.aio.AioRpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
