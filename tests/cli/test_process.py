"""The launcher notices the end of a child process at once, without polling."""

import asyncio
import os
import selectors
import signal
import sys
import time
from pathlib import Path

import pytest
from slipstream.cli.launch.process import PodFailed, Process, stop_processes

SLEEPS = (sys.executable, "-c", "import time; time.sleep(30)")
DIES = (sys.executable, "-c", "import sys; print('no model'); sys.exit(3)")


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the event loop wakes up."""

    wakes = 0

    def select(self, timeout=None):
        self.wakes += 1
        return super().select(timeout)


def started(folder: Path, command, name="pod") -> Process:
    return Process(name, command, log=folder / f"{name}.log", environment=dict(os.environ))


def test_waiting_for_many_pods_does_not_wake_the_event_loop(tmp_path):
    selector = CountingSelector()

    async def scenario() -> None:
        pods = [started(tmp_path, SLEEPS, f"pod-{number}") for number in range(8)]
        try:
            waiting = [asyncio.create_task(pod.ended()) for pod in pods]
            before = selector.wakes
            await asyncio.sleep(1.0)
            assert selector.wakes - before <= 4
            assert not any(task.done() for task in waiting)
        finally:
            for pod in pods:
                pod.kill()
        assert await asyncio.gather(*waiting) == [-signal.SIGKILL] * len(pods)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(scenario())


def test_several_tasks_may_wait_for_the_end_of_one_pod_without_leaking_a_descriptor(tmp_path):
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        pod = started(tmp_path, SLEEPS)
        waiting = [asyncio.create_task(pod.ended()) for _ in range(3)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        killed = time.monotonic()
        os.kill(pod.pid, signal.SIGTERM)
        assert await asyncio.gather(*waiting[1:]) == [-signal.SIGTERM] * 2
        assert time.monotonic() - killed < 2
        assert await pod.ended() == -signal.SIGTERM
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


def test_a_pod_that_ends_before_it_is_ready_is_reported_with_its_log(tmp_path):
    async def scenario() -> None:
        pod = started(tmp_path, DIES)
        with pytest.raises(PodFailed, match=r"(?s)exited with status 3 before it was ready.*no model"):
            await pod.ready(tmp_path / "ready.json", seconds=30)

    asyncio.run(scenario())


def test_a_pod_that_is_not_ready_in_time_is_reported(tmp_path):
    async def scenario() -> None:
        pod = started(tmp_path, SLEEPS)
        try:
            with pytest.raises(PodFailed, match=r"was not ready after 0\.1 s"):
                await pod.ready(tmp_path / "ready.json", seconds=0.1)
        finally:
            pod.kill()

    asyncio.run(scenario())


def test_pods_that_do_not_stop_in_time_are_killed_and_named(tmp_path):
    stubborn = (
        sys.executable,
        "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('up', flush=True); time.sleep(30)",
    )

    async def scenario() -> list[str]:
        pods = [started(tmp_path, SLEEPS, "meek"), started(tmp_path, stubborn, "stubborn")]
        while not pods[1].last_lines():  # noqa: ASYNC110 (a line in a file has no event)
            await asyncio.sleep(0.01)
        return await stop_processes(pods, seconds=0.5)

    assert asyncio.run(scenario()) == ["stubborn"]
