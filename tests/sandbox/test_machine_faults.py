"""Faults of the machine: no memory, a full disk, a busy cgroup, too little capacity.

None of them counts as a failure of a program.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sandbox.processes import descendants, stable_descendants
from sandbox.started import started
from slipstream.sandbox import cgroup
from slipstream.sandbox.capacity import Capacity, Need, TooLittleCapacity, servers_for, threads_each
from slipstream.sandbox.job import Bounds, Run
from slipstream.sandbox.server_process import SandboxLost
from slipstream.sandbox.supervisor import RunFailed, _end_of_killed

CAPACITY = Capacity(memory_mib=4096, scratch_mib=1024, processes=None, address_space_mib=None)


NEED = Need(memory_mib=512, bounds=Bounds(), disk_in_memory=True)


MIB = 1024 * 1024


def test_a_program_that_the_kernel_kills_has_no_result() -> None:
    """A cgroup that is out of memory kills with SIGKILL, and nothing else sends that signal to a program."""

    async def once() -> None:
        async with started(memory_mib=256) as sandbox:
            before = await stable_descendants()
            running = asyncio.create_task(
                sandbox.run(Run(code="while True: pass", seconds=30.0, memory_mib=256))
            )
            await asyncio.sleep(1.0)
            _, program = [
                pid for pid in descendants(os.getpid()) if pid not in before
            ]  # the other one is its supervisor
            os.kill(program, signal.SIGKILL)
            with pytest.raises(SandboxLost, match="has no memory left"):
                await running
            assert (await sandbox.run(Run(code="print(1)", seconds=5.0, memory_mib=256))).stdout == "1\n"

    asyncio.run(once())


def test_a_program_that_is_killed_for_its_cpu_time_is_late() -> None:
    run = Run(code="", seconds=2.0, memory_mib=256)
    assert _end_of_killed(3.01, run) == "late"
    with pytest.raises(RunFailed, match="no memory left"):
        _end_of_killed(1.0, run)


TESTS = Path(__file__).parents[1]


SOURCES = os.pathsep.join((str(TESTS), str(TESTS.parent / "services")))


FILLS = """
import os, time
kept = []
try:
    while len(kept) < 30:
        kept.append(open("file", "wb", buffering=0))
        os.remove("file")
        kept[-1].write(bytes(4 * 1024 * 1024))
except OSError:
    pass
time.sleep(60)
"""


WRITES = "open('file', 'wb').write(bytes(4 * 1024 * 1024))\nprint(42)"


ON_A_SMALL_DISK = """
import asyncio, json, os, sys
from slipstream.sandbox import kernel, seccomp
from slipstream.sandbox.job import Bounds, Run
from slipstream.sandbox.outer import find
from slipstream.sandbox.server_process import ServerProcess
from sandbox.test_machine_faults import FILLS, WRITES
from sandbox.test_sandbox import without_namespaces

async def play():
    if sys.argv[1] == "bare":
        without_namespaces()
    outer = await find("off")
    servers = [await ServerProcess.start(Bounds(scratch_mib=8), outer) for _ in range(2)]
    assert ("scratch_disk" in servers[0].report.active) == (sys.argv[1] == "own")
    fills = asyncio.create_task(servers[0].run(Run(code=FILLS, seconds=30.0, memory_mib=256)))
    await asyncio.sleep(1.5)
    result = await servers[1].run(Run(code=WRITES, seconds=10.0, memory_mib=256))
    fills.cancel()
    for server in servers:
        await server.kill()
    print(json.dumps([result.stdout, result.doubt]))

asyncio.run(play())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can mount a small disk"
)
@pytest.mark.parametrize("disks", ["own", "bare"])
def test_a_program_that_fills_the_disk_makes_no_other_program_fail(disks: str, tmp_path: Path) -> None:
    mounts = f'mount -t tmpfs -o size=24m none {tmp_path} && exec {sys.executable} -c "$0" {disks}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounts, ON_A_SMALL_DISK],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    stdout, doubt = json.loads(done.stdout)
    if disks == "own":
        assert (stdout, doubt) == ("42\n", "")
    else:
        assert stdout == ""
        assert "free space in the temporary folder, or move it to a larger disk" in doubt


def test_the_events_of_a_cgroup_are_counted_once(tmp_path: Path) -> None:
    (tmp_path / "pids.events").write_text("max 3\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 7\noom 2\noom_kill 1\n")
    both = cgroup.Cgroups(memory=[tmp_path], pids=[tmp_path])
    assert both.events() == 4
    (tmp_path / "pids.events").write_text("max 4\n")
    assert both.events() == 5


def test_a_run_during_which_the_cgroup_enforced_a_limit_is_doubtful(tmp_path: Path) -> None:
    async def once() -> tuple[str, str]:
        (tmp_path / "pids.events").write_text("max 0\n")
        own = cgroup.Cgroups(pids=[tmp_path])
        async with started(bubblewrap="off", memory_mib=256, cgroups=own) as sandbox:
            ordinary = await sandbox.run(Run(code="", seconds=5.0, memory_mib=256))
            sleeps = sandbox.run(Run(code="import time; time.sleep(1)", seconds=5.0, memory_mib=256))
            running = asyncio.create_task(sleeps)
            await asyncio.sleep(0.5)
            (tmp_path / "pids.events").write_text("max 1\n")
            return ordinary.doubt, (await running).doubt

    ordinary, doubtful = asyncio.run(once())
    assert ordinary == ""
    assert "the kernel refused a process or killed one" in doubtful


@pytest.mark.parametrize(
    ("cgroups", "mountinfo", "below"),
    [
        ("0::/\n", "30 23 0:26 / {place} ro - cgroup2 cgroup rw", "."),
        ("0::/kubepods/pod1\n", "30 23 0:26 / {place} ro - cgroup2 cgroup rw", "kubepods/pod1"),
        ("0::/kubepods/pod1\n", "30 23 0:26 /kubepods {place} ro - cgroup2 cgroup rw", "pod1"),
        ("0::/elsewhere/pod1\n", "30 23 0:26 / {place} ro - cgroup2 cgroup rw", "."),
        ("5:memory,pids:/a/b\n0::/x\n", "30 23 0:26 / {place} rw - cgroup cgroup rw,memory,pids", "a/b"),
    ],
)
def test_the_cgroup_of_this_process_is_found_wherever_it_is_mounted(
    tmp_path: Path, cgroups: str, mountinfo: str, below: str
) -> None:
    place = tmp_path / "cgroup"
    name = "memory.limit_in_bytes" if "memory" in cgroups else "memory.max"
    folder = place if "elsewhere" in cgroups else place / below
    folder.mkdir(parents=True)
    (tmp_path / "cgroup-of-self").mkdir()
    (tmp_path / "cgroup-of-self/cgroup").write_text(cgroups)
    (tmp_path / "cgroup-of-self/mountinfo").write_text(mountinfo.format(place=place) + "\n")
    (folder / name).write_text(f"{512 * MIB}\n")
    (folder / "pids.max").write_text("100\n")
    (folder / "pids.current").write_text("40\n")
    if folder != place:
        (place / name).write_text(f"{256 * MIB}\n")
        (place / "pids.max").write_text("max\n")
    own = cgroup.own(tmp_path / "cgroup-of-self")
    assert own.memory_bytes() == (256 if folder != place else 512) * MIB
    assert own.free_processes() == 60


@pytest.mark.parametrize(
    ("capacity", "need", "wanted", "message"),
    [
        (
            replace(CAPACITY, memory_mib=1087),
            NEED,
            2,
            "2 programs at a time of 544 MiB need 1088 MiB of memory",
        ),
        (replace(CAPACITY, memory_mib=500), NEED, None, "1 programs at a time of 544 MiB"),
        (
            replace(CAPACITY, scratch_mib=63),
            replace(NEED, disk_in_memory=False),
            2,
            "need 64 MiB of scratch disk",
        ),
        (replace(CAPACITY, processes=30), NEED, 2, "and there may be 30 more"),
        (replace(CAPACITY, address_space_mib=400), NEED, 1, "address space"),
    ],
)
def test_a_number_of_servers_that_does_not_fit_is_an_error(
    capacity: Capacity, need: Need, wanted: int | None, message: str
) -> None:
    with pytest.raises(TooLittleCapacity, match=message):
        servers_for(capacity, need, wanted=wanted)


def test_as_many_servers_as_fit_are_started() -> None:
    assert servers_for(CAPACITY, NEED, wanted=7) == 7
    assert servers_for(replace(CAPACITY, memory_mib=600), NEED, wanted=None) == 1
    assert threads_each(CAPACITY, Bounds(), servers=8) == 512
    assert threads_each(replace(CAPACITY, processes=1024), Bounds(), servers=8) == 124
