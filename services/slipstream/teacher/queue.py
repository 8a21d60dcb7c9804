"""What waits for the teacher, and what it reads together.

    read ─▶ waiting ─▶ batch ─▶ a thread with the model ─┬─▶ logprobs
                                                         └─▶ failed: the error, for every passage of the batch

`read` waits for the batches of its passages. The loop waits for something to read, and for the thread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from slipstream.records import TeacherLogprobs
from slipstream.rpc.errors import Busy
from slipstream.teacher.model import Passage
from slipstream.telemetry.metrics import Metrics

SMOOTHING = 0.2
"""Weight of the newest batch in the mean time of a passage."""
RETRY_SECONDS = (0.05, 5.0)
"""Bounds of the hint."""

Read = Callable[[Sequence[Passage]], list[TeacherLogprobs]]
Entry = tuple[Passage, asyncio.Future[TeacherLogprobs]]


class ReadingQueue:
    """A bounded queue in front of a model.

    Invariant: a request comes in when with it at most `places` are taken, or alone. A passage waits for those
    before it, never for more to come; one whose caller has gone is not read.
    """

    def __init__(self, read: Read, *, places: int, batch_tokens: int, metrics: Metrics) -> None:
        """`read` blocks; it is called in a thread, once at a time."""
        self._read = read
        self._places = places
        self._batch_tokens = batch_tokens
        self._metrics = metrics
        self._waiting: deque[Entry] = deque()
        self._wake = asyncio.Event()
        self._taken = 0
        self._mean_seconds = 0.0
        metrics.set("teacher_waiting", 0)
        metrics.count("teacher_refused_total", 0)

    async def read(self, passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        """What the model makes of them, in order. Errors: Busy when there is no room; those of the model."""
        self._enter(len(passages))
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        entries: list[Entry] = [(passage, loop.create_future()) for passage in passages]
        try:
            self._waiting.extend(entries)
            self._wake.set()
            found = await asyncio.gather(*(future for _, future in entries))
        finally:
            self._take(-len(passages))
        self._metrics.observe("teacher_seconds", time.monotonic() - started)
        self._metrics.count("teacher_tokens_total", sum(len(passage.token_ids) for passage in passages))
        return found

    async def work(self) -> None:
        """Read what waits, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next():
                await self._answer(batch)

    def _next(self) -> list[Entry]:
        """The oldest whose callers are still there, as many as fit into a forward pass; one at least."""
        batch: list[Entry] = []
        width = 0
        while self._waiting:
            passage, future = self._waiting[0]
            wider = max(width, passage.length)
            if batch and wider * (len(batch) + 1) > self._batch_tokens:
                break
            self._waiting.popleft()
            if not future.done():
                batch.append((passage, future))
                width = wider
        return batch

    async def _answer(self, batch: Sequence[Entry]) -> None:
        started = time.monotonic()
        try:
            found = await asyncio.to_thread(self._read, [passage for passage, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        each = (time.monotonic() - started) / len(batch)
        self._mean_seconds += (SMOOTHING if self._mean_seconds else 1.0) * (each - self._mean_seconds)
        for (_, future), logprobs in zip(batch, found, strict=True):
            if not future.done():
                future.set_result(logprobs)

    def _enter(self, passages: int) -> None:
        if self._taken and self._taken + passages > self._places:
            self._metrics.count("teacher_refused_total", passages)
            least, most = RETRY_SECONDS
            raise Busy(
                f"{self._taken} completions are in work or wait, and teacher.queue is {self._places}",
                retry_after_seconds=min(max(self._taken * self._mean_seconds, least), most),
            )
        self._take(passages)

    def _take(self, passages: int) -> None:
        self._taken += passages
        self._metrics.set("teacher_waiting", self._taken)
