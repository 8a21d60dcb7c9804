"""A pod that test_pod.py runs as a process; the first argument is its behaviour."""

import asyncio
import gc
import os
import sys
import threading
import time

from slipstream.config import ConfigError
from slipstream.processes.lifetime.parent_death import die_with_parent
from slipstream.rpc.errors import SlipstreamError, Stuck
from slipstream.rpc.pod import Pod, run_pod


async def serve(pod: Pod) -> None:
    pod.announce("127.0.0.1:5")
    await pod.stop.wait()


async def count_objects(pod: Pod) -> None:
    before = len(gc.get_objects())
    pod.announce("127.0.0.1:5")
    pod.log.info("objects of the garbage collector", before=before, now=len(gc.get_objects()))


async def fail_in_a_group(pod: Pod) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pod.stop.wait())
        async with asyncio.TaskGroup() as inner:
            inner.create_task(_raise(SlipstreamError("the worker burst")))


async def miss_a_key(pod: Pod) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_raise(ConfigError("verifier.rewards[0]: no such function")))


async def fail_badly(pod: Pod) -> None:
    raise ZeroDivisionError("a bug")


async def get_stuck(pod: Pod) -> None:
    threading.Thread(target=threading.Event().wait).start()
    raise Stuck("a call never returned")


async def _raise(error: Exception) -> None:
    raise error


def print_child_pid() -> None:
    """Start a child that must not outlive this process, and print its process id."""
    mine = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(mine)
        print(os.getpid(), flush=True)
    time.sleep(60)


if __name__ == "__main__":
    name = sys.argv.pop(1)
    if name == "parent":
        print_child_pid()
    mains = {
        "serve": serve,
        "count": count_objects,
        "group": fail_in_a_group,
        "key": miss_a_key,
        "bug": fail_badly,
        "stuck": get_stuck,
    }
    sys.exit(run_pod("fake", mains[name]))
