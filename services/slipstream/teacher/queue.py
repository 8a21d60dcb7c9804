"""The queue in front of the teacher's model, and how passages are batched.

    read ─▶ waiting ─▶ batch ─▶ a thread with the model ─┬─▶ logprobs
                                                         └─▶ failed: the error, for every passage of the batch

`read` waits for the batches of its passages. `work` waits for passages, and then for the thread.
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
"""Weight of the newest batch in the moving average of the seconds per passage."""
RETRY_SECONDS = (0.05, 5.0)
"""Bounds of the retry-after hint."""

Read = Callable[[Sequence[Passage]], list[TeacherLogprobs]]
Entry = tuple[Passage, asyncio.Future[TeacherLogprobs]]


class ReadingQueue:
    """A bounded queue in front of a model.

    Invariant: a request is admitted if the queue then holds at most `capacity` passages, or only this
    request. A passage waits for earlier passages, and never for later ones to fill a batch. A passage whose
    caller has cancelled is not read.
    """

    def __init__(self, read: Read, *, capacity: int, batch_tokens: int, metrics: Metrics) -> None:
        """`read` blocks; it is called in a thread, one call at a time."""
        self._read = read
        self._capacity = capacity
        self._batch_tokens = batch_tokens
        self._metrics = metrics
        self._waiting: deque[Entry] = deque()
        self._wake = asyncio.Event()
        self._size = 0
        self._mean_seconds = 0.0
        metrics.set("teacher_waiting", 0)
        metrics.count("teacher_refused_total", 0)

    async def read(self, passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        """Return the logprobs of the passages, in order. Errors: Busy if it is full, and those of `read`."""
        self._admit(len(passages))
        started = time.monotonic()
        loop = asyncio.get_running_loop()
        entries: list[Entry] = [(passage, loop.create_future()) for passage in passages]
        try:
            self._waiting.extend(entries)
            self._wake.set()
            logprobs = await asyncio.gather(*(future for _, future in entries))
        finally:
            self._resize(-len(passages))
        self._metrics.observe("teacher_seconds", time.monotonic() - started)
        self._metrics.count("teacher_tokens_total", sum(len(passage.token_ids) for passage in passages))
        return logprobs

    async def work(self) -> None:
        """Read waiting passages until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next():
                await self._answer(batch)

    def _next(self) -> list[Entry]:
        """Return the oldest passages that fit into one forward pass, at least one; skip cancelled ones."""
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
            read = await asyncio.to_thread(self._read, [passage for passage, _ in batch])
        except Exception as error:  # each waiting call ends with it; without that it would wait for ever
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        each = (time.monotonic() - started) / len(batch)
        self._mean_seconds += (SMOOTHING if self._mean_seconds else 1.0) * (each - self._mean_seconds)
        for (_, future), logprobs in zip(batch, read, strict=True):
            if not future.done():
                future.set_result(logprobs)

    def _admit(self, passages: int) -> None:
        if self._size and self._size + passages > self._capacity:
            self._metrics.count("teacher_refused_total", passages)
            least, most = RETRY_SECONDS
            raise Busy(
                f"the queue holds {self._size} completions, and teacher.queue is {self._capacity}",
                retry_after_seconds=min(max(self._size * self._mean_seconds, least), most),
            )
        self._resize(passages)

    def _resize(self, passages: int) -> None:
        self._size += passages
        self._metrics.set("teacher_waiting", self._size)
