"""What the machine lacks is never the fault of a program: memory, disk or threads (invariant 11)."""

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig
from slipstream.records import Outcome, Prompt
from slipstream.sandbox import cgroup
from slipstream.sandbox.capacity import Capacity, Need, TooLittleCapacity, servers_for, threads_each
from slipstream.sandbox.job import Bounds, Run, RunResult
from slipstream.sandbox.sandbox import Sandbox
from slipstream.sandbox.server_process import SandboxLost
from slipstream.sandbox.supervisor import RunFailed, _end_of_killed
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.code.cases import cases_of
from slipstream.verifier.reward import UnusableGroundTruth, Verdict
from slipstream.verifier.rewards.code_tests import CodeTests
from verifier.escapes.test_escapes import descendants, steady
from verifier.scoring import Bench, answer, scores

PROMPT = Prompt(
    prompt_id="p", task="t", answer="", text="?", fields={"tests": '[{"input": "", "output": "42"}]'}
)
CONFIG = CodeTestsConfig(name="code_tests", test_seconds=1.5, memory_mib=256)
ROOM = Capacity(memory_mib=4096, scratch_mib=1024, processes=None, address_space_mib=None)
NEED = Need(memory_mib=512, bounds=Bounds(), disk_in_memory=True)
MIB = 1024 * 1024


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def test_a_program_that_the_kernel_kills_is_not_judged() -> None:
    """As when a cgroup is out of memory: nobody else sends a SIGKILL to a program."""

    async def once() -> None:
        async with Bench([CONFIG], config=VerifierConfig(workers=1)) as bench:
            sandbox = bench.resources.sandbox
            before = await steady()
            running = asyncio.create_task(
                sandbox.run(Run(code="while True: pass", seconds=30.0, memory_mib=256))
            )
            await asyncio.sleep(1.0)
            _, program = [pid for pid in descendants(os.getpid()) if pid not in before]  # and its warden
            os.kill(program, signal.SIGKILL)
            with pytest.raises(SandboxLost, match="has no memory left"):
                await running
            assert (await sandbox.run(Run(code="print(1)", seconds=5.0, memory_mib=256))).stdout == "1\n"

    asyncio.run(once())


def test_a_program_that_is_killed_for_its_time_of_a_core_is_late() -> None:
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
from slipstream.sandbox.sandbox import Sandbox
from slipstream.sandbox.server_process import ServerProcess
from verifier.test_machine_faults import FILLS, WRITES
from verifier.test_sandbox import without_namespaces

async def play():
    if sys.argv[1] == "bare":
        without_namespaces()
    outer = await find("off")
    servers = [await ServerProcess.start(Bounds(scratch_mib=8), outer) for _ in range(2)]
    assert ("scratch_disk" in servers[0].report.active) == (sys.argv[1] == "own")
    fills = asyncio.create_task(servers[0].run(Run(code=FILLS, seconds=30.0, memory_mib=256)))
    await asyncio.sleep(1.5)
    ran = await servers[1].run(Run(code=WRITES, seconds=10.0, memory_mib=256))
    fills.cancel()
    for server in servers:
        await server.kill()
    print(json.dumps([ran.stdout, ran.doubt]))

asyncio.run(play())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can mount a small disk"
)
@pytest.mark.parametrize("disks", ["own", "bare"])
def test_a_program_that_fills_the_disk_makes_no_other_wrong(disks: str, tmp_path: Path) -> None:
    mounts = f'mount -t tmpfs -o size=24m none {tmp_path} && exec {sys.executable} -c "$0" {disks}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounts, ON_A_SMALL_DISK],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said, doubt = json.loads(done.stdout)
    if disks == "own":
        assert (said, doubt) == ("42\n", "")
    else:
        assert said == ""
        assert "give the verifier's temporary folder more room" in doubt


class Runs:
    """A sandbox in which every run becomes the same."""

    def __init__(self, ran: RunResult) -> None:
        self._ran = ran

    async def run(self, run: Run, *, group: str) -> RunResult:
        return self._ran


def judged(ran: RunResult) -> Verdict:
    reward: Any = CodeTests(CONFIG, Runs(ran), overran=lambda: None)  # type: ignore[arg-type]
    return asyncio.run(reward.score_one(PROMPT, answer(fenced("print(42)"))))


def test_a_failure_that_may_be_the_machines_is_an_error_and_a_success_is_a_score() -> None:
    wrong = RunResult(
        end="exited", status=1, stdout="", value=None, seconds=0.1, error="OSError", doubt="no room"
    )
    with pytest.raises(SandboxLost, match="crashed: OSError, perhaps by this machine's fault: no room"):
        judged(wrong)
    assert judged(replace(wrong, status=0, stdout="42")).value == 1
    assert judged(replace(wrong, doubt="")).value == 0
    assert judged(replace(wrong, end="threads")).detail == "test 1 of 1: threads: more than it may have"


def test_a_verifier_counts_what_its_cgroup_has_refused(tmp_path: Path) -> None:
    (tmp_path / "pids.events").write_text("max 3\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 7\noom 2\noom_kill 1\n")
    both = cgroup.Cgroups(memory=[tmp_path], pids=[tmp_path])
    assert both.events() == 4
    (tmp_path / "pids.events").write_text("max 4\n")
    assert both.events() == 5


def test_a_run_during_which_the_cgroup_refused_something_is_doubtful(tmp_path: Path) -> None:
    async def once() -> tuple[str, str]:
        (tmp_path / "pids.events").write_text("max 0\n")
        own = cgroup.Cgroups(pids=[tmp_path])
        log = Log(pod="verifier", stream=io.StringIO())
        sandbox = Sandbox(number=1, require=(), bubblewrap="off", metrics=Metrics(), log=log, cgroups=own)
        sandbox.prepare(memory_mib=256)
        await sandbox.start()
        try:
            fine = await sandbox.run(Run(code="", seconds=5.0, memory_mib=256))
            sleeps = sandbox.run(Run(code="import time; time.sleep(1)", seconds=5.0, memory_mib=256))
            running = asyncio.create_task(sleeps)
            await asyncio.sleep(0.5)
            (tmp_path / "pids.events").write_text("max 1\n")
            return fine.doubt, (await running).doubt
        finally:
            await sandbox.close()

    fine, doubtful = asyncio.run(once())
    assert fine == ""
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
def test_the_cgroup_of_this_process_is_found_wherever_it_is(
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
    ("room", "need", "wanted", "said"),
    [
        (replace(ROOM, memory_mib=1087), NEED, 2, "2 programs at a time of 544 MiB need 1088 MiB of memory"),
        (replace(ROOM, memory_mib=500), NEED, None, "1 programs at a time of 544 MiB"),
        (
            replace(ROOM, scratch_mib=63),
            replace(NEED, disk_in_memory=False),
            2,
            "need 64 MiB of scratch disk",
        ),
        (replace(ROOM, processes=30), NEED, 2, "and there may be 30 more"),
        (replace(ROOM, address_space_mib=400), NEED, 1, "address space"),
    ],
)
def test_a_verifier_with_too_little_room_for_programs_does_not_start(
    room: Capacity, need: Need, wanted: int | None, said: str
) -> None:
    with pytest.raises(TooLittleCapacity, match=said):
        servers_for(room, need, wanted=wanted)


def test_as_many_servers_as_fit_are_started() -> None:
    assert servers_for(ROOM, NEED, wanted=7) == 7
    assert servers_for(replace(ROOM, memory_mib=600), NEED, wanted=None) == 1
    assert threads_each(ROOM, Bounds(), servers=8) == 512
    assert threads_each(replace(ROOM, processes=1024), Bounds(), servers=8) == 124


def test_a_pod_that_is_too_small_says_so_at_its_start() -> None:
    async def once() -> None:
        config = CodeTestsConfig(name="code_tests", memory_mib=65_536)
        async with Bench([config], config=VerifierConfig(workers=1024)):
            pass

    with pytest.raises(TooLittleCapacity, match=r"set verifier\.workers or memory_mib of code_tests lower"):
        asyncio.run(once())


PROGRAMS = {
    "late: no end before its deadline": "while True: pass",
    "killed: SIGSEGV": "import ctypes\nctypes.string_at(0)",
    "memory: MemoryError": "print(len(bytes(10 ** 9)))",
    "crashed: ZeroDivisionError": "1 / 0",
    "crashed: Strange": "class Strange(Exception): pass\nraise Strange('\\x1b[2J' * 9)",
    "crashed: exit status 3": "raise SystemExit(3)",
    "crashed: exit status 1": "raise type('\\x1b[2J', (Exception,), {})",
    "output: more than it may write": "while True: print('x' * 9999)",
    "disk: more scratch files than it may have": (
        "import time\nfor n in range(300): open(str(n), 'w')\ntime.sleep(9)"
    ),
    "wrong: another output": "print(41)",
}


def test_a_verdict_on_a_program_says_why_it_failed() -> None:
    found = scores(CONFIG, PROMPT, *[answer(fenced(program)) for program in PROGRAMS.values()])
    assert [given.detail for given in found] == [f"test 1 of 1: {why}" for why in PROGRAMS]
    assert {(given.value, given.outcome) for given in found} == {(0, Outcome.SCORE)}


def test_a_verdict_on_several_tests_names_the_first_that_fails() -> None:
    cases = [{"call": "f", "args": [n], "expected": n} for n in range(3)]
    prompt = replace(PROMPT, fields={"tests": json.dumps(cases)})

    def details(programs: Sequence[str], **settings: Any) -> list[tuple[float, str]]:
        config = CodeTestsConfig(name="code_tests", **settings)
        given = scores(config, prompt, *[answer(fenced(program)) for program in programs])
        return [(each.value, each.detail) for each in given]

    assert details(["def f(n): return n % 2", "def f(n): 1 / (1 - n)", "def f(n): return n"]) == [
        (0, "test 3 of 3: wrong: another value"),
        (0, "test 1 of 3: wrong: another value"),
        (1, ""),
    ]
    assert details(["def f(n): return n % 2"], partial_credit=True) == [
        (2 / 3, "2 of 3 tests; test 3 of 3: wrong: another value")
    ]


LONG = "x" * 262_144


@pytest.mark.parametrize(
    "tests",
    [
        json.dumps([{"input": "", "output": LONG}]),
        json.dumps([{"call": "f", "args": [], "expected": LONG}]),
        f"assert f() == {LONG!r}",
        json.dumps([{"input": "", "output": "é" * 131_072}], ensure_ascii=False),
    ],
)
def test_an_expected_output_that_no_program_may_write_is_an_unusable_ground_truth(tests: str) -> None:
    prompt = replace(PROMPT, fields={"tests": tests})
    with pytest.raises(UnusableGroundTruth, match="a program may write less than 262,144"):
        cases_of(prompt)
    shorter = replace(PROMPT, fields={"tests": tests.replace("xxx", "x").replace("ééé", "é")})
    assert cases_of(shorter)
