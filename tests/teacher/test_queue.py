"""The queue of the teacher: batches, capacity, cancelled callers, and a model that fails."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
from slipstream.records import TeacherLogprobs
from slipstream.rpc.errors import Busy
from slipstream.teacher.model import Passage
from slipstream.teacher.queue import ReadingQueue
from slipstream.telemetry.metrics import Metrics
from teacher.serving import zeros


def passage(tokens: int) -> Passage:
    return Passage(
        prompt_token_ids=(1,), token_ids=(2,) * tokens, temperature=1.0, top_k=0, vocabulary_size=9
    )


class Model:
    """Waits for `let`, then reads; records its batches."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.batches: list[list[int]] = []
        self.error: Exception | None = None

    def read(self, passages: Sequence[Passage]) -> list[TeacherLogprobs]:
        assert self.let.wait(timeout=10)
        self.batches.append([len(p.token_ids) for p in passages])
        if self.error is not None:
            raise self.error
        return zeros(passages)


def queue_of(model: Model, *, capacity: int = 100, batch_tokens: int = 8, metrics: Metrics) -> ReadingQueue:
    return ReadingQueue(model.read, capacity=capacity, batch_tokens=batch_tokens, metrics=metrics)


async def until_begun(queue: ReadingQueue, reading: "asyncio.Task[list[TeacherLogprobs]]") -> None:
    """Wait until the queue has passed the waiting passages to the model."""
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not reading.done()


def test_waiting_passages_are_batched_as_far_as_they_fit() -> None:
    async def once() -> tuple[list[int], list[list[int]]]:
        model = Model()
        queue = queue_of(model, metrics=Metrics())
        working = asyncio.create_task(queue.work())
        first = asyncio.create_task(queue.read([passage(1)]))
        await until_begun(queue, first)  # the model reads the first, and the others wait
        requests = [[passage(n) for n in sizes] for sizes in ((3, 2), (3, 7), (20,))]
        rest = [asyncio.create_task(queue.read(passages)) for passages in requests]
        await asyncio.sleep(0)
        model.let.set()
        readings = [await task for task in (first, *rest)]
        working.cancel()
        return [teacher.tokens for part in readings for teacher in part], model.batches

    # Two passages padded to 4 tokens are 8 tokens, a third would make 12; one of 20 exceeds the limit alone.
    tokens, batches = asyncio.run(once())
    assert tokens == [1, 3, 2, 3, 7, 20]
    assert batches == [[1], [3, 2], [3], [7], [20]]


def test_a_full_queue_is_busy_with_a_retry_after_hint() -> None:
    async def once() -> Metrics:
        model, metrics = Model(), Metrics()
        queue = queue_of(model, capacity=3, metrics=metrics)
        working = asyncio.create_task(queue.work())
        large = asyncio.create_task(
            queue.read([passage(1)] * 5)
        )  # an empty queue admits a request of any size
        await until_begun(queue, large)
        with pytest.raises(Busy, match=r"the queue holds 5 completions, and teacher\.queue is 3") as busy:
            await queue.read([passage(1)])
        assert 0.05 <= busy.value.retry_after_seconds <= 5
        model.let.set()
        await large
        assert len(await queue.read([passage(1)] * 3)) == 3
        working.cancel()
        return metrics

    metrics = asyncio.run(once())
    assert metrics.registry.get_sample_value("slipstream_teacher_refused_total") == 1
    assert metrics.registry.get_sample_value("slipstream_teacher_waiting") == 0
    assert metrics.registry.get_sample_value("slipstream_teacher_tokens_total") == 8
    assert metrics.registry.get_sample_value("slipstream_teacher_seconds_count") == 2


def test_passages_of_cancelled_callers_are_not_read() -> None:
    async def once() -> list[list[int]]:
        model = Model()
        queue = queue_of(model, capacity=3, metrics=Metrics())
        working = asyncio.create_task(queue.work())
        first = asyncio.create_task(queue.read([passage(1)]))
        await until_begun(queue, first)
        gone = asyncio.create_task(queue.read([passage(2), passage(3)]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        third = asyncio.create_task(queue.read([passage(4), passage(4)]))  # the queue is empty again
        model.let.set()
        await asyncio.gather(first, third)
        working.cancel()
        return model.batches

    assert asyncio.run(once()) == [[1], [4], [4]]


def test_an_error_of_the_model_fails_only_its_batch() -> None:
    async def once() -> int:
        model = Model()
        queue = queue_of(model, metrics=Metrics())
        working = asyncio.create_task(queue.work())
        model.let.set()
        model.error = RuntimeError("out of memory")
        with pytest.raises(RuntimeError, match="out of memory"):
            await queue.read([passage(1), passage(2)])
        model.error = None
        reading = await queue.read([passage(3)])
        working.cancel()
        return reading[0].tokens

    assert asyncio.run(once()) == 3
