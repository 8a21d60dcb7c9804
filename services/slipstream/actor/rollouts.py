"""The rollouts that this actor samples from: their places, and completions that outlive an engine.

    directory ─▶ update: one stream for each listed rollout
    place(group) ─▶ a rollout with a free place; all members of the group sample there while it lives
    sample ─▶ stream ─▶ chunks ─▶ turn
                 └─ lost ─▶ a place at another rollout ─▶ continue from the tokens that arrived

A lost rollout is tried again once RETRY_SECONDS have passed, if replay still lists it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from slipstream.actor.rollout_stream import NoPlace, RequestRefused, RolloutLost, RolloutStream
from slipstream.actor.sampler import RolloutsLost, SamplingRefused
from slipstream.actor.seeds import stable_seed
from slipstream.records import NO_VERSION, Chunk, ListedRollout, RolloutStatus, Sampling, Turn, joined
from slipstream.served_version import ServedVersion
from slipstream.telemetry.background import BackgroundTask
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import rollout_pb2 as pb

RETRY_SECONDS = 1.0


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


class Rollouts:
    """Places and streams. `served` follows the newest version that any rollout serves.

    Invariant: a group has at most one place, and the requests of a group go to the rollout of that place.
    """

    def __init__(
        self,
        *,
        connect: Callable[[str], grpc.aio.Channel],
        silence_seconds: float,
        most_engines: int,
        served: ServedVersion,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._connect = connect
        self._silence_seconds = silence_seconds
        self._most_engines = most_engines
        self._served = served
        self._metrics = metrics
        self._log = log
        self._rollouts: dict[str, Rollout] = {}
        self._retry_at: dict[str, float] = {}
        self._unreached: set[str] = set()
        """Rollouts whose silence has been logged; they are tried again without a further line."""
        self._closing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._notifying: BackgroundTask[None] | None = None
        self._continuing = 0
        self.suspects = asyncio.Lock()
        """Held by a request that may have ended an engine, until its next first tokens."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when places became free or rollouts came or went."""
        for reason in ("drained", "lost"):
            metrics.count("rollouts_lost_total", 0, reason=reason)

    @property
    def capacity(self) -> int:
        """Groups that this actor may hold places for: its own, and the free ones."""
        return sum(len(rollout.groups) + rollout.free for rollout in self._rollouts.values())

    def update(self, listed: Sequence[ListedRollout]) -> None:
        """Open streams to rollouts that are new.

        A rollout that is not listed any more stays as long as its stream lives: replay may have missed its
        heartbeats.
        """
        for each in listed:
            if each.worker_id not in self._rollouts and time.monotonic() >= self._retry_at.get(
                each.worker_id, 0
            ):
                self._open(each)

    @asynccontextmanager
    async def place(self, group_id: str, *, min_version: int = NO_VERSION) -> AsyncIterator["Place"]:
        """Wait for a free place at a rollout that serves `min_version` or a later version, and hold it."""
        place = Place(self, group_id, min_version=min_version)
        await place.enter()
        try:
            yield place
        finally:
            place.leave()

    def anywhere(self) -> "Place":
        """Return a sampler that needs no place, for requests beside the sampling of groups."""
        return Place(self, "", min_version=NO_VERSION)

    async def close(self) -> None:
        """Close all streams."""
        for rollout in list(self._rollouts.values()):
            self._forget(rollout)
        await asyncio.gather(*self._closing)

    async def acquire(self, group_id: str, *, min_version: int, continuing: bool) -> Rollout:
        """Wait for a rollout with a free place, and take the place. Lost requests go before new groups."""
        self._continuing += continuing
        try:
            async with self._changed:
                while True:
                    rollout = self._best(group_id, min_version=min_version)
                    if rollout is not None and (continuing or not self._continuing or not group_id):
                        if group_id:
                            rollout.groups.add(group_id)
                        return rollout
                    await self._changed.wait()
        finally:
            self._continuing -= continuing
            self._notify()

    def release(self, rollout: Rollout, group_id: str) -> None:
        """Free the place of a group."""
        rollout.groups.discard(group_id)
        self._notify()

    def refused(self, rollout: Rollout, group_id: str, *, seconds: float) -> None:
        """Take a rollout as full for some seconds."""
        rollout.full_until = time.monotonic() + seconds
        rollout.groups.discard(group_id)
        asyncio.get_running_loop().call_later(seconds, self._notify)

    @property
    def most_engines(self) -> int:
        """Most engines that one turn is sampled on."""
        return self._most_engines

    def _best(self, group_id: str, *, min_version: int) -> Rollout | None:
        usable = [
            rollout
            for rollout in self._rollouts.values()
            if rollout.usable
            and rollout.status.serving_version >= min_version
            and (rollout.free or not group_id)
        ]
        return max(usable, key=lambda rollout: (rollout.free, rollout.name), default=None)

    def _open(self, listed: ListedRollout) -> None:
        channel = self._connect(listed.address)
        rollout = Rollout(listed=listed, channel=channel, status=RolloutStatus())
        self._rollouts[listed.worker_id] = rollout
        rollout.stream = RolloutStream(
            channel,
            silence_seconds=self._silence_seconds,
            on_status=lambda status: self._heard(rollout, status),
            on_lost=lambda reason: self._lost(rollout, reason),
            log=self._log,
        )

    def _heard(self, rollout: Rollout, status: RolloutStatus) -> None:
        before, rollout.status, rollout.heard = rollout.status, status, True
        if before != status:
            self._follow_version()
            self._notify()

    def _lost(self, rollout: Rollout, reason: str) -> None:
        if self._rollouts.get(rollout.name) is rollout:
            drained = rollout.status.draining
            if rollout.heard:
                self._metrics.count("rollouts_lost_total", reason="drained" if drained else "lost")
                self._log.warning(
                    "lost a rollout", rollout=rollout.name, groups=len(rollout.groups), reason=reason
                )
                self._unreached.discard(rollout.name)
            elif rollout.name not in self._unreached:
                self._unreached.add(rollout.name)
                self._log.warning(
                    "a listed rollout does not answer",
                    rollout=rollout.name,
                    address=rollout.listed.address,
                    reason=reason,
                )
            self._retry_at[rollout.name] = time.monotonic() + RETRY_SECONDS
            self._forget(rollout)

    def _forget(self, rollout: Rollout) -> None:
        self._rollouts.pop(rollout.name, None)
        closing = asyncio.create_task(_close(rollout))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._follow_version()
        self._notify()

    def _follow_version(self) -> None:
        """Let `served` follow the newest version that a rollout serves."""
        versions = [each.status.serving_version for each in self._rollouts.values() if each.usable]
        if versions:
            self._served.serve(max(versions))
        else:
            self._served.suspend()

    def _notify(self) -> None:
        """Wake up everything that waits for a place."""
        self.on_change()
        if self._notifying is None or self._notifying.done:
            self._notifying = BackgroundTask.begin(self._wake(), "waking of groups", self._log)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Place:
    """The place of one group; a Sampler. After the loss of its rollout it moves to another one."""

    def __init__(self, rollouts: Rollouts, group_id: str, *, min_version: int) -> None:
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

    async def sample(self, prompt_token_ids: tuple[int, ...], sampling: Sampling) -> Turn:
        """See Sampler."""
        chunks: list[Chunk] = []
        engines = failures = 0
        lost = False
        while True:
            sampled = tuple(token for chunk in chunks for token in chunk.token_ids)
            start = self._request(prompt_token_ids + sampled, sampling, sampled=len(sampled))
            try:
                more, last = await self._attempt(start, suspect=failures > 0, continuing=lost)
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
                return _turn([*chunks, *more, last], last, engines=engines + 1)

    async def _attempt(
        self, start: pb.StartSampling, *, suspect: bool, continuing: bool
    ) -> tuple[tuple[Chunk, ...], Turn]:
        """Send a request to the rollout of this place; return its chunks and the last one.

        Of the requests that may have ended an engine, one at a time is sent until its first tokens arrive. So
        a prompt that ends engines is found, and those that happened to be beside it are not blamed.
        Errors: RolloutLost, NoPlace, SamplingRefused.
        """
        if not suspect:
            return await self._send(await self._current(continuing=continuing), start)
        began = asyncio.Event()
        async with self._rollouts.suspects:
            rollout = await self._current(continuing=continuing)
            sending = asyncio.create_task(self._send(rollout, start, began=began))
            try:
                await began.wait()
            except asyncio.CancelledError:
                sending.cancel()
                raise
        return await sending

    async def _send(
        self, rollout: Rollout, start: pb.StartSampling, *, began: asyncio.Event | None = None
    ) -> tuple[tuple[Chunk, ...], Turn]:
        """Errors: RolloutLost, NoPlace, SamplingRefused."""
        try:
            return await _stream_of(rollout).sample(start, began=began)
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


async def _close(rollout: Rollout) -> None:
    if rollout.stream is not None:
        await rollout.stream.close()
    await rollout.channel.close(None)
