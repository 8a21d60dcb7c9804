"""The sandbox: its layers of isolation, the loss of a server, and the separation of runs."""

import asyncio
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sandbox.hostile_programs import calls
from sandbox.started import started
from slipstream.config import VerifierConfig
from slipstream.processes.frames import receive_frame, to_frame
from slipstream.sandbox import kernel, scratch, seccomp
from slipstream.sandbox.interpreter import (
    ENVIRONMENT,
    INTERPRETER_FLAGS,
    SCRIPT,
    SOURCE_ROOT,
)
from slipstream.sandbox.job import Bounds, Run, bounds_to_json
from slipstream.sandbox.server_process import SandboxLost
from slipstream.telemetry.metrics import Metrics

pytestmark = pytest.mark.usefixtures("outer_isolation")
POD_USER = 10001
UNSHARE, CLONE = {"x86_64": (272, 56), "aarch64": (97, 220)}[os.uname().machine]


def run(code: str, **settings: Any) -> Run:
    return Run(**{"code": code, "seconds": 2.0, "memory_mib": 256, **settings})


def children() -> set[int]:
    """Return the children of this process, which may include those of other tests."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return {int(child) for child in text.split()}


def test_a_python_without_packages_can_print_the_report_of_the_layers() -> None:
    """The report needs only an interpreter, as in an image before anything is installed."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-S", "-c", "import slipstream.sandbox.report"]
    subprocess.run(command, env=environment, check=True)


def test_a_lost_server_costs_one_run_and_is_replaced() -> None:
    async def once() -> None:
        of_others = children()
        metrics = Metrics()
        async with started(metrics=metrics) as sandbox:
            hangs = asyncio.create_task(sandbox.run(run("while True: pass", seconds=60.0)))
            await asyncio.sleep(0.2)
            for child in children() - of_others:
                os.kill(child, signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await hangs
            assert (await sandbox.run(run("print(1)"))).stdout == "1\n"
            assert metrics.registry.get_sample_value("slipstream_sandbox_servers_lost_total") == 1

    asyncio.run(once())


def test_a_program_sees_no_files_or_processes_of_an_earlier_one() -> None:
    async def once() -> None:
        async with started() as sandbox:
            await sandbox.run(run("open('left', 'w').write('x'); import math; math.pi = 3"))
            result = await sandbox.run(
                run("import os, math; print(os.listdir('.'), math.pi > 3, dict(os.environ))")
            )
            assert result.stdout == "[] True {}\n"
            first, second = [
                await sandbox.run(run("import random; print(random.random(), {'a', 'b'})")) for _ in "ab"
            ]
            assert first.stdout == second.stdout, "a run is repeatable"

    asyncio.run(once())


def test_a_scratch_folder_with_links_closed_folders_and_long_paths_is_emptied(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("stays")
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "closed" / "in").mkdir(parents=True)
    (folder / "closed").chmod(0)
    current = os.open(folder, os.O_RDONLY)
    for _ in range(1500):  # nested deeper than the longest path
        os.mkdir("folder-of-twenty-chars", dir_fd=current)
        current, parent = os.open("folder-of-twenty-chars", os.O_RDONLY, dir_fd=current), current
        os.close(parent)
    os.close(current)
    assert scratch.over(str(folder), max_bytes=1 << 30)
    scratch.clear(str(folder))
    assert list(folder.iterdir()) == []
    assert outside.read_text() == "stays"


def test_a_seccomp_filter_exists_for_both_architectures_and_no_other() -> None:
    for machine in ("x86_64", "aarch64"):
        code = seccomp.program(machine)
        assert len(code) // 8 < 4096
        (_, _, _, audit) = struct.unpack("=HBBI", code[8:16])
        assert audit == seccomp.MACHINES[machine].audit
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program("riscv64")


def without_namespaces() -> None:
    """Refuse new namespaces to this process and its children, as most pods do."""
    refuse = (seccomp.RETURN, 0, 0, seccomp.ERRNO | 1)
    steps = [(seccomp.LOAD, 0, 0, 0), (seccomp.JUMP_IF_EQUAL, 0, 1, UNSHARE), refuse]
    steps.append((seccomp.RETURN, 0, 0, seccomp.ALLOW))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(b"".join(struct.pack("=HBBI", *step) for step in steps))


def readable_interpreter() -> str:
    """Return an interpreter that the user of a pod can run. Skip the test where there is none."""
    for candidate in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        folders = [Path(candidate), *Path(candidate).parents]
        if Path(candidate).exists() and all(folder.stat().st_mode & stat.S_IXOTH for folder in folders):
            version = subprocess.run(
                [candidate, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True
            )
            if version.stdout == b"True\n":
                return candidate
    pytest.skip("no interpreter that others than root can read")


@contextmanager
def server_as_pod(prepare: Callable[[], None] | None) -> Iterator[Callable[..., Any]]:
    """Start a fork server as the user of a pod; yields a function that receives a report or runs a
    program."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, tempfile.TemporaryDirectory() as home:
        os.chown(home, POD_USER, POD_USER)
        command = [
            readable_interpreter(),
            *INTERPRETER_FLAGS,
            str(SCRIPT),
            str(SOURCE_ROOT),
            str(theirs.fileno()),
            home,
        ]
        with theirs:
            process = subprocess.Popen(
                [*command, bounds_to_json(Bounds(output_bytes=65536, scratch_mib=4)), "none"],
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                user=POD_USER,
                group=POD_USER,
                extra_groups=[],
                preexec_fn=prepare,
                start_new_session=True,
            )
        try:

            def ask(*runs: Run) -> Any:
                if not runs:
                    return receive_frame(ours)
                ours.sendall(to_frame(runs[0].to_json()) + to_frame({"nonce": "n"}))
                return receive_frame(ours)

            yield ask
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the user of a pod")
@pytest.mark.parametrize("prepare", [None, without_namespaces])
def test_the_user_of_a_pod_gets_the_required_layers(
    prepare: Callable[[], None] | None,
) -> None:
    with server_as_pod(prepare) as ask:
        report = ask()
        assert {*VerifierConfig().isolation.require, "user"} <= set(report["active"])
        assert ("pid_namespace" in report["active"]) == (prepare is None)
        assert ask(run("", call="__import__('os').getuid()"))["value"] == str(POD_USER)
        assert ask(run("import os\nos.kill(os.getppid(), 9)\nprint(1)"))["stdout"] == ""
        assert ask(run("while True: pass", seconds=0.2))["end"] == "late"
        bomb = calls.PRELUDE + calls.CALLS["makes threads for ever, of nothing"]
        assert ask(run(bomb, call="answer()"))["end"] == "threads"
        reads = "open('/proc/%d/environ' % __import__('os').getppid()).read()"
        assert ask(run("", call=reads))["value"] is None
        assert ask(run("print(1)"))["stdout"] == "1\n"


def with_stricter_limits() -> None:
    """Set limits as a container runtime may; the user of a pod cannot raise them."""
    for kind, limit in ((resource.RLIMIT_NOFILE, 20), (resource.RLIMIT_FSIZE, 1 << 20)):
        resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (2, 2))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the user of a pod")
def test_a_stricter_inherited_limit_is_kept() -> None:
    with server_as_pod(with_stricter_limits) as ask:
        assert {*VerifierConfig().isolation.require} <= set(ask()["active"])
        reads = "[__import__('resource').getrlimit(kind)[1] for kind in (7, 1, 0)]"
        assert ask(run("", call=reads, seconds=4.0))["value"] == f'{{"l":[20,{1 << 20},2]}}'
