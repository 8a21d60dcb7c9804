"""A publication and a coroutine beside it: every failure is raised or logged."""

import asyncio
import gc
import io
from typing import Any

import pytest
from learner.fakes import Events, FakeReplay
from slipstream.learner.prefetch import Prefetch
from slipstream.learner.publishing import Publishing
from slipstream.rpc.errors import Unreachable
from slipstream.telemetry.logs import Log


class Disconnected(FakeReplay):
    """Every call fails when the connection breaks; an announcement some turns of the event loop later."""

    def __init__(self, turns: int) -> None:
        super().__init__(Events(), batches=9)
        self.broken = asyncio.Event()
        self._turns = turns

    async def sample(self, version: int, *, groups: int | None = None) -> Any:
        await self.broken.wait()
        raise Unreachable("replay: no batch")

    async def announce(self, version: int) -> None:
        await self.broken.wait()
        for _ in range(self._turns):
            await asyncio.sleep(0)
        raise Unreachable("replay: not announced")


class Parts:
    """A lockstep and a publisher that do nothing."""

    async def begin_snapshot(self, *, probe: bool) -> None:
        """Copy nothing."""

    async def settle_snapshot(self) -> None:
        """Copy nothing."""

    def wants_probe(self, version: int) -> bool:
        """Compare nothing."""
        return False

    async def publish(self, version: int) -> None:
        """Send nothing."""


@pytest.mark.parametrize("turns", range(8))
def test_a_batch_and_a_publication_that_fail_together_lose_no_exception(turns: int) -> None:
    unseen: list[str] = []
    log = Log(pod="learner", stream=io.StringIO())

    async def run() -> str:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(str(context)))
        replay: Any = Disconnected(turns)
        parts: Any = Parts()
        publishing = Publishing(
            lockstep=parts, publisher=parts, replay=replay, weights=asyncio.Lock(), overlap=True, log=log
        )
        prefetch = Prefetch(replay, steps=9, log=log)
        await publishing.publish(1)
        taking = prefetch.take(1, asyncio.Event(), patience_seconds=5)
        asyncio.get_running_loop().call_later(0.01, replay.broken.set)
        with pytest.raises(Unreachable) as raised:
            await publishing.race_with_publication(taking)
        released = await prefetch.release()
        await asyncio.sleep(0.01)
        return f"{raised.value} {released}"

    raised = asyncio.run(run())
    gc.collect()
    assert unseen == []
    assert isinstance(log.stream, io.StringIO)
    seen = f"{raised} {log.stream.getvalue()}"
    assert "replay: no batch" in seen
    assert "replay: not announced" in seen


class FailedCopy(Parts):
    """A lockstep and a publisher: the copy of the weights fails after it has begun."""

    def __init__(self) -> None:
        self.reason = ""

    async def settle_snapshot(self) -> None:
        """Fail."""
        raise MemoryError("no memory for the copy")

    def refuse(self, reason: str) -> None:
        """Note why no weights are sent any more."""
        self.reason = reason

    async def publish(self, version: int) -> None:
        """Must not be called."""
        raise AssertionError("weights of no single version are sent")


@pytest.mark.parametrize("overlap", [True, False])
def test_after_a_copy_that_fails_nothing_is_sent_and_the_learner_gets_the_error(overlap: bool) -> None:
    async def run() -> None:
        parts: Any = FailedCopy()
        replay: Any = Disconnected(0)
        log = Log(pod="learner", stream=io.StringIO())
        publishing = Publishing(
            lockstep=parts, publisher=parts, replay=replay, weights=asyncio.Lock(), overlap=overlap, log=log
        )

        async def publish() -> None:
            await publishing.publish(3)
            await publishing.settle()

        with pytest.raises(MemoryError, match="no memory for the copy"):
            await publish()
        assert parts.reason == "the snapshot of version 3 is incomplete"

    asyncio.run(asyncio.wait_for(run(), 20))
