"""The place of a group at a rollout, and the group's requests there.

sample ─▶ stream ─▶ chunks ─▶ turn
             └─ lost ─▶ a place at another rollout ─▶ continue from the tokens that arrived
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import grpc

from slipstream import records
from slipstream.actor.rollout_stream import LossCause, NoPlace, RequestRefused, RolloutLost, RolloutStream
from slipstream.actor.sampler import RolloutsLost, SamplingRefused, Watch
from slipstream.actor.seeds import stable_seed
from slipstream.v1 import rollout_pb2 as pb

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ask(Protocol[T_co]):
    """Sends one request over a stream, and waits for its answer."""

    async def __call__(self, stream: RolloutStream, /, *, began: Callable[[], None] | None) -> T_co:
        """`began` is called when the first tokens arrive."""


@dataclass(slots=True, eq=False)
class Rollout:
    """One listed rollout, with an open stream."""

    listed: records.ListedRollout
    channel: grpc.aio.Channel
    status: records.RolloutStatus
    stream: RolloutStream | None = None
    heard: bool = False
    """Whether it has sent a message."""
    groups: set[str] = field(default_factory=set)
    """Groups of this actor that have a place here."""
    full_until: float = 0.0
    """Time until which the rollout is taken as full, because it refused a group."""
    lost_version: bool = False
    """Whether it serves a version of lost steps: the learner has resumed from an older checkpoint since."""
    lag: int = 0
    """Versions by which it is behind the newest that any rollout serves; 0 while it takes no requests."""

    @property
    def name(self) -> str:
        """Name of the rollout."""
        return self.listed.worker_id

    @property
    def open_stream(self) -> RolloutStream:
        """The stream of a rollout that `Rollouts` lists, which has one."""
        assert self.stream is not None
        return self.stream

    @property
    def usable(self) -> bool:
        """Whether a new request can be sent here."""
        if self.stream is None or self.stream.lost:
            return False
        return self.status.serving and not self.status.draining

    @property
    def free(self) -> int:
        """Free places. Groups of other actors are counted as of the last message."""
        if not self.usable or time.monotonic() < self.full_until:
            return 0
        return max(0, self.status.places - max(len(self.groups), self.status.groups_running))


class RolloutChoice(Protocol):
    """Which rollout a place is at."""

    suspects: asyncio.Lock
    """Held by a request that may have ended an engine, until its next first tokens."""

    @property
    def most_engines(self) -> int:
        """Most engines that may end before they have sampled one token of a request."""

    async def acquire(self, group_id: str, *, prompt_id: str, min_version: int, continuing: bool) -> Rollout:
        """Wait for a rollout with a free place, and take the place. Lost requests go before new groups.

        Without a group: return the rollout of the last group of this prompt while it serves, else any.
        """

    def over_age(self, rollout: Rollout) -> bool:
        """Return whether no token that the rollout samples now would train."""

    def release(self, rollout: Rollout, group_id: str) -> None:
        """Free the place of a group."""

    def moved(self, cause: LossCause) -> None:
        """Count a request that has to continue on another rollout."""

    def refused(self, rollout: Rollout, group_id: str, *, seconds: float) -> None:
        """Take a rollout as full for some seconds."""


class Place:
    """The place of one group; a Sampler. After the loss of its rollout it moves to another one."""

    def __init__(
        self,
        rollouts: RolloutChoice,
        group_id: str,
        *,
        prompt_id: str = "",
        min_version: int = records.NO_VERSION,
        engines_lost: int = 0,
        on_tokens: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`engines_lost`: engines that the prompt ended under earlier leases. If there are any, each request
        is sent alone. `on_tokens`: called with the name of the rollout when the first tokens of a request
        arrive."""
        self._rollouts = rollouts
        self._on_tokens = on_tokens
        self._group_id = group_id
        self._prompt_id = prompt_id
        self._min_version = min_version
        self._suspect = engines_lost > 0
        self._most_engines = max(1, rollouts.most_engines - engines_lost)
        self._rollout: Rollout | None = None
        self._moving = asyncio.Lock()
        self.over_age = False
        """See GroupPlace."""
        self._given_up: RolloutsLost | None = None
        """Why a request of the group was given up; no further one of them is sent."""

    async def enter(self) -> None:
        """Wait for a free place, and take it."""
        await self._current(continuing=False)

    def leave(self) -> None:
        """Free the place."""
        rollout, self._rollout = self._rollout, None
        if rollout is not None:
            self._rollouts.release(rollout, self._group_id)

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: records.Sampling, watch: Watch | None = None
    ) -> records.Turn:
        """See Sampler."""
        watched = _Watched(watch, to_own_end=sampling.to_own_end) if watch else None
        chunks: list[records.Chunk] = []
        engines = failures = 0
        lost = False
        while True:
            sampled = tuple(token for chunk in chunks for token in chunk.token_ids)
            start = self._request(prompt_token_ids + sampled, sampling, sampled=len(sampled))
            sample = partial(RolloutStream.sample, start=start, watch=watched.take if watched else None)
            try:
                turn = await self._attempt(sample, failures=failures, continuing=lost)
            except RolloutLost as error:
                lost = True
                if error.chunk.token_ids:
                    chunks.append(error.chunk)
                    engines += 1
                failures = self._failures(failures, error)
            except NoPlace:
                pass
            else:
                turn = _turn(chunks, turn, engines=engines + 1) if chunks else turn
                return turn if watched is None or watched.end is None else turn.until(watched.end)

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """See Sampler."""
        failures = 0
        lost = False
        while True:
            start = pb.StartSampling(token_ids=prompt_token_ids, candidates=candidates)
            try:
                weigh = partial(RolloutStream.weigh, start=start)
                return await self._attempt(weigh, failures=failures, continuing=lost)
            except RolloutLost as error:
                lost = True
                failures = self._failures(failures, error)
            except NoPlace:
                pass  # the rollout drains

    def _failures(self, failures: int, error: RolloutLost) -> int:
        """Return how many rollouts failed, one after the other, before one token of a request came.

        Errors: RolloutsLost for too many.
        """
        if error.chunk.token_ids:
            return 0
        failures += error.suspicious
        if error.suspicious and failures >= self._most_engines:
            self._given_up = RolloutsLost(
                f"{failures} rollouts failed before they had sampled one token, the last: {error} "
                "(actor.most_engines)",
                engines=failures,
            )
            raise self._given_up from error
        return failures

    async def _attempt(self, ask: Ask[T], *, failures: int, continuing: bool) -> T:
        """Send a request to the rollout of this place; return its answer.

        Of the requests that may have ended an engine, one at a time is sent until its first tokens arrive. So
        a prompt that ends engines is found, and those that happened to be beside it are not blamed.
        Errors: RolloutLost, NoPlace, SamplingRefused.
        """
        if not failures and not self._suspect:
            return await self._send(await self._current(continuing=continuing), ask)
        while True:
            # before the lock: groups with a place wait for the lock, and this wait may be for their places
            rollout = await self._current(continuing=continuing)
            async with self._rollouts.suspects:
                if self._given_up is not None:
                    raise self._given_up
                if self._can_send(rollout):
                    sending = await self._send_first(rollout, ask)
                    break
        return await sending

    async def _send_first(self, rollout: Rollout, ask: Ask[T]) -> "asyncio.Task[T]":
        """Send a request; return once its first tokens have arrived, or it has ended."""
        began = asyncio.Event()
        sending = asyncio.create_task(self._send(rollout, ask, began=began))
        try:
            await began.wait()
        except asyncio.CancelledError:
            sending.cancel()
            raise
        return sending

    def _can_send(self, rollout: Rollout) -> bool:
        """Return whether a request can still be sent to a rollout that `_current` returned earlier."""
        if not self._group_id:
            return rollout.usable
        return self._rollout is rollout and not self._rollouts.over_age(rollout)

    async def _send(self, rollout: Rollout, ask: Ask[T], *, began: asyncio.Event | None = None) -> T:
        """Return the answer to a request.

        `began` is set when its first tokens arrive, or else when it has ended and a lost rollout is given up:
        `_attempt` sends the next request that may end an engine only then. Errors: RolloutLost, NoPlace,
        SamplingRefused.
        """

        def first_tokens() -> None:
            self._on_tokens(rollout.name)
            if began is not None:
                began.set()

        try:
            return await ask(rollout.open_stream, began=first_tokens)
        except RolloutLost as error:
            if error.sent and self._group_id:
                self._rollouts.moved(error.cause)
            self.over_age |= error.cause == "over_age"
            self._move(rollout)
            raise
        except NoPlace as error:
            self._refused(rollout, error)
            raise
        except RequestRefused as error:
            raise SamplingRefused(f"{rollout.name}: {error}") from error
        finally:
            if began is not None:
                began.set()

    async def _current(self, *, continuing: bool) -> Rollout:
        """Return the rollout of this place, after waiting for one if it has none."""
        async with self._moving:
            if self._rollout is not None and self._rollouts.over_age(self._rollout):
                self.leave()
                self.over_age = continuing = True
            if self._rollout is None or not self._group_id:
                self._rollout = await self._rollouts.acquire(
                    self._group_id,
                    prompt_id=self._prompt_id,
                    min_version=self._min_version,
                    continuing=continuing,
                )
            self.over_age = False
            return self._rollout

    def _move(self, lost: Rollout) -> None:
        """Give up a rollout; the next request looks for another one."""
        if self._rollout is lost:
            self.leave()

    def _refused(self, rollout: Rollout, error: NoPlace) -> None:
        self._rollouts.refused(rollout, self._group_id, seconds=error.retry_after_seconds)
        self._move(rollout)

    def _request(
        self, token_ids: tuple[int, ...], sampling: records.Sampling, *, sampled: int
    ) -> pb.StartSampling:
        """Return the request that continues after `sampled` tokens of the turn."""
        seed = sampling.seed
        if seed is not None and sampled:
            # the same seed would repeat the random numbers of the first tokens
            seed = stable_seed(seed, sampled)
        return pb.StartSampling(
            group_id=self._group_id,
            token_ids=token_ids,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens - sampled,
            top_logprobs=sampling.top_logprobs,
            seed=seed,
        )


class _Watched:
    """What the reader of a turn has seen of it, on all engines together."""

    def __init__(self, watch: Watch, *, to_own_end: bool) -> None:
        self.end: int | None = None
        """Number of tokens of the turn, once its reader has ended it."""
        self._watch = watch
        self._to_own_end = to_own_end
        self._seen = 0

    def take(self, chunk: records.Chunk) -> bool:
        """Show a chunk to the reader; return whether no further tokens are needed."""
        if self.end is None:
            kept = self._watch(chunk)
            self.end = None if kept is None else self._seen + kept
            self._seen += len(chunk.token_ids)
        return self.end is not None and not self._to_own_end


def _turn(chunks: Sequence[records.Chunk], last: records.Turn, *, engines: int) -> records.Turn:
    """Return what several engines sampled, one after the other, as one turn; `last` ended it."""
    return records.turn_of(
        records.joined([*chunks, last]),
        finish_reason=last.finish_reason,
        routed_experts=last.routed_experts,
        engines=engines,
    )
