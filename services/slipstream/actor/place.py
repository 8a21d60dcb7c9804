"""The place of a group at a rollout, and the group's requests there.

sample ─▶ stream ─▶ chunks ─▶ turn
             └─ lost ─▶ a place at another rollout ─▶ continue from the tokens that arrived
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from slipstream.actor.rollout_stream import NoPlace, RequestRefused, RolloutLost, RolloutStream
from slipstream.actor.sampler import RolloutsLost, SamplingRefused, Watch
from slipstream.actor.seeds import stable_seed
from slipstream.records import Chunk, ListedRollout, RolloutStatus, Sampling, Turn, joined
from slipstream.v1 import rollout_pb2 as pb


@dataclass(slots=True, eq=False)
class Rollout:
    """One listed rollout, with an open stream."""

    listed: ListedRollout
    channel: grpc.aio.Channel
    status: RolloutStatus
    stream: RolloutStream | None = None
    heard: bool = False
    """Whether it has sent a message."""
    groups: set[str] = field(default_factory=set)
    """Groups of this actor that have a place here."""
    full_until: float = 0.0
    """Time until which the rollout is taken as full, because it refused a group."""

    @property
    def name(self) -> str:
        """Name of the rollout."""
        return self.listed.worker_id

    @property
    def usable(self) -> bool:
        """Whether a new request can be sent here."""
        return self.stream is not None and not self.stream.lost and self.status.serving

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
        """Most engines that one turn is sampled on."""

    async def acquire(self, group_id: str, *, min_version: int, continuing: bool) -> Rollout:
        """Wait for a rollout with a free place, and take the place. Lost requests go before new groups."""

    def release(self, rollout: Rollout, group_id: str) -> None:
        """Free the place of a group."""

    def refused(self, rollout: Rollout, group_id: str, *, seconds: float) -> None:
        """Take a rollout as full for some seconds."""


class Place:
    """The place of one group; a Sampler. After the loss of its rollout it moves to another one."""

    def __init__(self, rollouts: RolloutChoice, group_id: str, *, min_version: int) -> None:
        self._rollouts = rollouts
        self._group_id = group_id
        self._min_version = min_version
        self._rollout: Rollout | None = None
        self._moving = asyncio.Lock()

    async def enter(self) -> None:
        """Wait for a free place, and take it."""
        await self._current(continuing=False)

    def leave(self) -> None:
        """Free the place."""
        rollout, self._rollout = self._rollout, None
        if rollout is not None:
            self._rollouts.release(rollout, self._group_id)

    async def sample(
        self, prompt_token_ids: tuple[int, ...], sampling: Sampling, watch: Watch | None = None
    ) -> Turn:
        """See Sampler."""
        watched = _Watched(watch, to_own_end=sampling.to_own_end) if watch else None
        chunks: list[Chunk] = []
        engines = failures = 0
        lost = False
        while True:
            sampled = tuple(token for chunk in chunks for token in chunk.token_ids)
            start = self._request(prompt_token_ids + sampled, sampling, sampled=len(sampled))
            try:
                more, last = await self._attempt(
                    start, suspect=failures > 0, continuing=lost, watch=watched.take if watched else None
                )
            except RolloutLost as error:
                lost = True
                chunks += error.chunks
                engines += bool(error.chunks)
                failures = failures + 1 if error.suspicious else 0 if error.chunks else failures
                if failures == self._rollouts.most_engines:
                    raise RolloutsLost(
                        f"{failures} rollouts failed before they had sampled one token, the last: {error} "
                        "(actor.most_engines)"
                    ) from error
            except NoPlace:
                pass
            else:
                turn = _turn([*chunks, *more, last], last, engines=engines + 1)
                return turn if watched is None or watched.end is None else turn.until(watched.end)

    async def _attempt(
        self, start: pb.StartSampling, *, suspect: bool, continuing: bool, watch: "_Take | None"
    ) -> tuple[tuple[Chunk, ...], Turn]:
        """Send a request to the rollout of this place; return its chunks and the last one.

        Of the requests that may have ended an engine, one at a time is sent until its first tokens arrive. So
        a prompt that ends engines is found, and those that happened to be beside it are not blamed.
        Errors: RolloutLost, NoPlace, SamplingRefused.
        """
        if not suspect:
            return await self._send(await self._current(continuing=continuing), start, watch=watch)
        began = asyncio.Event()
        async with self._rollouts.suspects:
            rollout = await self._current(continuing=continuing)
            sending = asyncio.create_task(self._send(rollout, start, began=began, watch=watch))
            try:
                await began.wait()
            except asyncio.CancelledError:
                sending.cancel()
                raise
        return await sending

    async def _send(
        self,
        rollout: Rollout,
        start: pb.StartSampling,
        *,
        began: asyncio.Event | None = None,
        watch: "_Take | None" = None,
    ) -> tuple[tuple[Chunk, ...], Turn]:
        """Errors: RolloutLost, NoPlace, SamplingRefused."""
        try:
            return await _stream_of(rollout).sample(start, began=began, watch=watch)
        except RolloutLost:
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

    async def weigh(self, prompt_token_ids: tuple[int, ...], candidates: tuple[int, ...]) -> list[float]:
        """See Sampler."""
        failures = 0
        while True:
            rollout = await self._current(continuing=failures > 0)
            start = pb.StartSampling(token_ids=prompt_token_ids, candidates=candidates)
            try:
                return await _stream_of(rollout).weigh(start)
            except RolloutLost as error:
                self._move(rollout)
                failures += not error.drained
                if failures == self._rollouts.most_engines:
                    raise RolloutsLost(
                        f"{failures} rollouts failed during one request, the last: {error} "
                        "(actor.most_engines)"
                    ) from error
            except RequestRefused as error:
                raise SamplingRefused(f"{rollout.name}: {error}") from error

    async def _current(self, *, continuing: bool) -> Rollout:
        """Return the rollout of this place, after waiting for one if it has none."""
        async with self._moving:
            if self._rollout is None or not self._group_id:
                self._rollout = await self._rollouts.acquire(
                    self._group_id, min_version=self._min_version, continuing=continuing
                )
            return self._rollout

    def _move(self, lost: Rollout) -> None:
        """Give up a rollout; the next request looks for another one."""
        if self._rollout is lost:
            self.leave()

    def _refused(self, rollout: Rollout, error: NoPlace) -> None:
        self._rollouts.refused(rollout, self._group_id, seconds=error.retry_after_seconds)
        self._move(rollout)

    def _request(self, token_ids: tuple[int, ...], sampling: Sampling, *, sampled: int) -> pb.StartSampling:
        """Return the request that continues after `sampled` tokens of the turn."""
        seed = sampling.seed
        if seed is not None and sampled:
            seed = stable_seed(
                seed, sampled
            )  # the same seed would repeat the random numbers of the first tokens
        return pb.StartSampling(
            group_id=self._group_id,
            token_ids=token_ids,
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens - sampled,
            top_logprobs=sampling.top_logprobs,
            seed=seed,
        )


_Take = Callable[[Chunk], bool]


class _Watched:
    """What the reader of a turn has seen of it, on all engines together."""

    def __init__(self, watch: Watch, *, to_own_end: bool) -> None:
        self.end: int | None = None
        """Number of tokens of the turn, once its reader has ended it."""
        self._watch = watch
        self._to_own_end = to_own_end
        self._seen = 0

    def take(self, chunk: Chunk) -> bool:
        """Show a chunk to the reader; return whether no further tokens are needed."""
        if self.end is None:
            kept = self._watch(chunk)
            self.end = None if kept is None else self._seen + kept
            self._seen += len(chunk.token_ids)
        return self.end is not None and not self._to_own_end


def _turn(chunks: Sequence[Chunk], last: Turn, *, engines: int) -> Turn:
    """Return the chunks of a request, the last included, as one turn."""
    merged = joined(chunks)
    return Turn(
        token_ids=merged.token_ids,
        logprobs=merged.logprobs,
        spans=merged.spans,
        top_logprobs=merged.top_logprobs,
        finish_reason=last.finish_reason,
        routed_experts=last.routed_experts,
        engines=engines,
    )


def _stream_of(rollout: Rollout) -> RolloutStream:
    assert rollout.stream is not None
    return rollout.stream
