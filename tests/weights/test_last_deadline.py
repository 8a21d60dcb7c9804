"""A call that never returns: its caller gets an error, and the process can exit."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from slipstream.weights.group import WeightGroup
from slipstream.weights.last_deadline import EXIT_STATUS, CallStuck, Progress, watched

SERVICES = Path(__file__).parents[2] / "services"


def test_the_caller_gets_the_result_and_the_error_of_a_call() -> None:
    def refuse(_: Progress) -> None:
        raise ValueError("refused")

    assert asyncio.run(watched(lambda _: 7, timeout_seconds=5, what="a call")) == 7
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(watched(refuse, timeout_seconds=5, what="a call"))


def test_a_call_without_progress_is_abandoned_after_two_of_its_timeouts() -> None:
    release = threading.Event()
    started = time.monotonic()
    try:
        with pytest.raises(CallStuck, match=r"the broadcast made no progress for 0\.4 s"):
            asyncio.run(watched(lambda _: release.wait(60), timeout_seconds=0.2, what="the broadcast"))
        assert 0.4 <= time.monotonic() - started < 20
    finally:
        release.set()


def test_a_call_that_makes_progress_may_take_as_long_as_it_needs() -> None:
    def work(progress: Progress) -> str:
        for _ in range(20):
            time.sleep(0.1)
            progress()
        return "done"

    assert asyncio.run(watched(work, timeout_seconds=0.5, what="a call")) == "done"


def test_the_event_loop_runs_while_the_abort_of_a_group_blocks() -> None:
    release = threading.Event()

    class Blocked:
        def abort(self) -> None:
            release.wait(60)

    started = time.monotonic()
    group = WeightGroup(1.0)
    group.add(0, Blocked())
    try:
        group.close()
        group.close()
        assert time.monotonic() - started < 10
    finally:
        release.set()


CALL = """
import time
from slipstream.weights.last_deadline import or_exit
with or_exit(0.5, "the receipt of weights") as progress:
    for _ in range({steps}):
        time.sleep(0.1)
        progress()
    time.sleep({silent})
print("over")
time.sleep(1.5)
"""


def in_a_process(steps: int, silent: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CALL.format(steps=steps, silent=silent)],
        env={**os.environ, "PYTHONPATH": str(SERVICES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_process_without_progress_exits_with_the_reason() -> None:
    ended = in_a_process(steps=3, silent=50)
    assert ended.returncode == EXIT_STATUS
    assert "the receipt of weights made no progress for 1 s" in ended.stderr
    assert not ended.stdout


def test_a_process_continues_when_the_call_has_ended() -> None:
    ended = in_a_process(steps=15, silent=0)
    assert (ended.returncode, ended.stdout) == (0, "over\n")


LEAVING = """
import atexit, time
import torch  # what it does at the end of a process takes a while, and comes before what is registered next
atexit.register(print, "the interpreter ends", flush=True)
from slipstream.weights.group import WeightGroup

class Group:
    def abort(self):
        time.sleep(0.2)  # until then the main thread has dropped the group

    def __del__(self):
        time.sleep(2)
        print("destroyed", flush=True)

group = WeightGroup(1.0)
group.add(0, Group())
group.close()
time.sleep(0.5)
"""


def test_a_process_exits_only_after_its_aborted_group_is_destroyed() -> None:
    """torch aborts a process whose interpreter exits while a thread is in the destructor of a group."""
    ended = subprocess.run(
        [sys.executable, "-c", LEAVING],
        env={**os.environ, "PYTHONPATH": str(SERVICES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "destroyed\nthe interpreter ends\n"), ended.stderr
