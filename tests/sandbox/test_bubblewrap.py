"""Fork servers inside bubblewrap: the visible files, the end of the parent, and the fallback if bubblewrap
fails."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from sandbox.processes import descendants
from slipstream.sandbox import bubblewrap
from slipstream.sandbox.bubblewrap_trial import NAMESPACES
from slipstream.sandbox.confine import DEVICES
from slipstream.sandbox.interpreter import SOURCE_ROOT
from slipstream.sandbox.job import Bounds, Run, RunResult
from slipstream.sandbox.layers import Report
from slipstream.sandbox.outer import Use, find
from slipstream.sandbox.server_process import ServerProcess

Seen = TypeVar("Seen")
WORKING = pytest.mark.usefixtures("working_bubblewrap")
BOUNDS = Bounds(output_bytes=65_536, scratch_mib=4)
SECRET = "the key of the pod"
KNOWN = "import os; print([path for path in {paths!r} if os.path.lexists(path)])"
FILLS = """
kept = []
try:
    while len(kept) < 20:
        kept.append(open("file", "wb", buffering=0))
        os.remove("file")
        kept[-1].write(bytes(1024 * 1024))
except OSError as error:
    print(error.strerror)
"""
REFUSES = """#!/bin/sh
echo 'bwrap: Creating new namespace failed: Operation not permitted' >&2
exit 1
"""
LETS_THROUGH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
HANGING = """
import asyncio
from slipstream.sandbox.job import Bounds, Run
from slipstream.sandbox.outer import find
from slipstream.sandbox.server_process import ServerProcess

async def hang():
    server = await ServerProcess.start(Bounds(output_bytes=65536, scratch_mib=4), await find("auto"))
    assert "bubblewrap" in server.report.active
    print("runs", flush=True)
    await server.run(Run(code="while True: pass", seconds=60.0, memory_mib=256))

asyncio.run(hang())
"""


def ran(*codes: str, use: Use = "auto") -> tuple[Report, list[RunResult]]:
    """Run programs in one server; returns its report and their results."""

    async def once() -> tuple[Report, list[RunResult]]:
        server = await ServerProcess.start(BOUNDS, await find(use))
        try:
            runs = [Run(code=code, seconds=5.0, memory_mib=256) for code in codes]
            return server.report, [await server.run(run) for run in runs]
        finally:
            await server.kill()

    return asyncio.run(once())


def runs(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False


def existing(paths: list[str], use: Use) -> list[str]:
    """Return the paths that exist for a program."""
    _, (program,) = ran(KNOWN.format(paths=paths), use=use)
    return [path for path in paths if repr(path) in program.stdout]


def of_a_server(look: Callable[[int], Seen]) -> Seen:
    """Call `look` with the process id of a server inside bubblewrap, and return its result."""

    async def once() -> Seen:
        others = descendants(os.getpid())
        server = await ServerProcess.start(BOUNDS, await find("auto"))
        try:
            _, first, *_ = [pid for pid in descendants(os.getpid()) if pid not in others]
            return look(first)
        finally:
            await server.kill()

    return asyncio.run(once())


def status_and_shared_namespaces(pid: int) -> tuple[dict[str, str], list[str]]:
    """Return /proc/PID/status, and the namespaces that the process shares with this one."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    names = [*NAMESPACES, *(["user"] if os.geteuid() else [])]
    shared = [
        name
        for name in names
        if os.readlink(f"/proc/{pid}/ns/{name}") == os.readlink(f"/proc/self/ns/{name}")
    ]
    return dict(line.split(":\t", 1) for line in lines), shared


def writable_mounts(pid: int) -> tuple[set[str], str]:
    """Return the writable mounts of a process, and the folder of its scratch disk."""
    lines = Path(f"/proc/{pid}/mounts").read_text(encoding="utf-8").splitlines()
    mounts = {line.split()[1]: line.split()[3].split(",") for line in lines}
    (scratch,) = [place for place in mounts if "/slipstream-scratch-" in place]
    return {place for place, options in mounts.items() if "rw" in options}, scratch


@pytest.fixture
def put_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that puts a script on the PATH as `bwrap`."""

    def put(script: str) -> None:
        (tmp_path / "bwrap").write_text(script)
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return put


@WORKING
def test_nothing_of_the_pod_exists_for_a_program(tmp_path: Path) -> None:
    (tmp_path / "tls.key").write_text(SECRET)
    (tmp_path / "folder").mkdir()
    paths = [
        *(str(tmp_path / "tls.key"), str(tmp_path / "folder"), str(tmp_path)),
        *("/run", "/var", "/home", "/srv", "/sys", "/boot", "/mnt", "/opt", "/usr/share/doc"),
        *("/etc/passwd", "/etc/hostname", "/etc/ssl", "/etc/resolv.conf", "/bin/sh", "/usr/bin/env"),
        *(sys.executable, f"/proc/{os.getpid()}/environ", str(SOURCE_ROOT / "slipstream/config")),
        *("/dev/shm", "/dev/pts", "/dev/mem", "/dev/vda", os.path.expanduser("~/.ssh"), os.getcwd()),
    ]
    assert set(existing(paths, "off")) == {path for path in paths if os.path.lexists(path)}
    assert existing(paths, "auto") == [path for path in paths if path in str(SOURCE_ROOT)]


@WORKING
def test_a_server_has_its_own_namespaces_and_few_capabilities() -> None:
    status, shared = of_a_server(status_and_shared_namespaces)
    assert shared == []
    assert status["NoNewPrivs"] == "1"
    assert status["NSpid"].split()[1:] == ["1"]
    assert int(status["CapEff"], 16).bit_count() == (
        0 if os.geteuid() else len(bubblewrap.CAPABILITIES_OF_ROOT)
    )


@WORKING
def test_only_the_scratch_disk_is_writable_inside_bubblewrap() -> None:
    writable, scratch = of_a_server(writable_mounts)
    assert writable - {*DEVICES, "/proc"} == {scratch}


@WORKING
def test_the_inner_layers_are_active_inside_bubblewrap() -> None:
    report, (user, network, wrote) = ran(
        "import os; print(os.getuid() != 0, os.uname().nodename)",
        "import socket; socket.socket()",
        "import os\nfor path in ('/x', '/tmp/x', '/proc/self/x', '/dev/x'):\n"
        " try: open(path, 'w')\n except OSError: print('no')",
    )
    assert {
        "rlimits",
        "seccomp",
        "landlock",
        "network_namespace",
        "pid_namespace",
        "user",
        "bubblewrap",
    } <= set(report.active)
    assert user.stdout == "True sandbox\n"
    assert network.status == 1
    assert wrote.stdout == 4 * "no\n"


@WORKING
def test_deleted_files_that_are_open_count_against_the_limit_of_the_scratch_disk() -> None:
    _, (fills, after) = ran(f"import os{FILLS}\nprint(len(kept) - 1)", "open('x', 'w').write('x'); print(1)")
    assert fills.stdout == f"No space left on device\n{bubblewrap.SCRATCH_DISKS * BOUNDS.scratch_mib}\n"
    assert after.stdout == "1\n"


@WORKING
def test_nothing_inside_bubblewrap_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_ROOT), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, env=environment)
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"runs\n"
        for _ in range(1000):
            if len(below := descendants(parent.pid)) >= 4:  # bwrap, server, supervisor and program
                break
            time.sleep(0.01)
        assert len(below) >= 4
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(map(runs, below)):
        assert time.monotonic() < deadline, "something outlived it"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (REFUSES, "bwrap: Creating new namespace failed: Operation not permitted"),
        (LETS_THROUGH, "the trial program sees outside of it: process "),
        ("no program", "Exec format error"),
        ("#!/bin/sh\n", "the trial program printed ''"),
    ],
)
def test_if_bubblewrap_fails_programs_run_without_it_and_the_report_has_the_reason(
    script: str, reason: str, put_on_path: Callable[[str], None]
) -> None:
    put_on_path(script)
    report, (program,) = ran("print(1)")
    assert reason in report.missing["bubblewrap"]
    assert program.stdout == "1\n"


@pytest.mark.chart
@WORKING
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mask /proc as a container runtime does")
@pytest.mark.parametrize(("masked", "reason"), [("", None), ("/proc/interrupts", "Can't mount proc")])
def test_the_user_of_a_pod_has_bubblewrap_unless_proc_is_masked(masked: str, reason: str | None) -> None:
    as_pod = "exec setpriv --reuid 10001 --regid 10001 --clear-groups /usr/bin/python3 -B -m"
    hide = f"mount --bind /dev/null {masked} && " if masked else ""
    command = f"{hide}{as_pod} slipstream.sandbox.report"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONPATH": str(SOURCE_ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert {"rlimits", "seccomp", "landlock", "user"} <= set(report["active"])
    assert ("bubblewrap" in report["active"]) == (reason is None)
    assert reason is None or reason in report["missing"]["bubblewrap"]
