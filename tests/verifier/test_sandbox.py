"""The sandbox itself: which walls stand, who may not start without them, and what a lost server costs."""

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
from slipstream.config import VerifierConfig
from slipstream.config.rewards import CodeTestsConfig, ExactMatchConfig
from slipstream.config.sections.verifier import IsolationConfig
from slipstream.processes.frames import receive_frame, to_frame
from slipstream.sandbox import kernel, scratch, seccomp
from slipstream.sandbox.interpreter import (
    ENVIRONMENT,
    INTERPRETER_FLAGS,
    SCRIPT,
    SOURCE_ROOT,
)
from slipstream.sandbox.job import Bounds, Run, bounds_to_json
from slipstream.sandbox.layers import LAYERS, Report, TooFewLayers
from slipstream.sandbox.server_process import SandboxLost
from verifier.escapes import calls
from verifier.scoring import Bench

pytestmark = pytest.mark.usefixtures("outer_wall")
REWARD = CodeTestsConfig(name="code_tests")
POD_USER = 10001
UNSHARE, CLONE = {"x86_64": (272, 56), "aarch64": (97, 220)}[os.uname().machine]


def run(code: str, **settings: Any) -> Run:
    return Run(**{"code": code, "seconds": 2.0, "memory_mib": 256, **settings})


def children() -> set[int]:
    """Of this process, which may be those of other tests too."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return {int(child) for child in text.split()}


def test_every_layer_is_reported_and_shown_as_a_metric() -> None:
    async def once() -> None:
        async with Bench([REWARD], config=VerifierConfig(workers=1)) as bench:
            for name in LAYERS:
                assert bench.sample("isolation_layer", layer=name) in (0, 1)
            for name in VerifierConfig().isolation.require:
                assert bench.sample("isolation_layer", layer=name) == 1

    asyncio.run(once())


def test_nothing_starts_where_no_reward_runs_code() -> None:
    async def once() -> None:
        config = VerifierConfig(isolation=IsolationConfig(require=("gvisor",)))
        async with Bench([ExactMatchConfig(name="exact_match")], config=config) as bench:
            assert bench.sample("isolation_layer", layer="seccomp") is None

    asyncio.run(once())


def test_a_verifier_with_fewer_layers_than_demanded_does_not_start() -> None:
    async def once() -> None:
        config = VerifierConfig(workers=1, isolation=IsolationConfig(require=("seccomp", "gvisor")))
        async with Bench([REWARD], config=config):
            pass

    with pytest.raises(TooFewLayers, match=r"gvisor \(the pod runs on the node's own kernel\)"):
        asyncio.run(once())
    Report(active=["seccomp"], missing={"gvisor": "x"}).demand(["seccomp"])


def test_what_stands_is_told_by_a_python_without_packages() -> None:
    """A report is had wherever an interpreter is, such as an image before anything is installed."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE_ROOT)}
    command = [sys.executable, "-S", "-c", "import slipstream.sandbox.report"]
    subprocess.run(command, env=environment, check=True)


def test_a_lost_server_costs_one_run_and_is_replaced() -> None:
    async def once() -> None:
        of_others = children()
        async with Bench([REWARD], config=VerifierConfig(workers=1)) as bench:
            sandbox = bench.resources.sandbox
            hangs = asyncio.create_task(sandbox.run(run("while True: pass", seconds=60.0)))
            await asyncio.sleep(0.2)
            for child in children() - of_others:
                os.kill(child, signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await hangs
            assert (await sandbox.run(run("print(1)"))).stdout == "1\n"
            assert bench.sample("sandbox_servers_lost_total") == 1

    asyncio.run(once())


def test_programs_have_nothing_of_each_other() -> None:
    async def once() -> None:
        async with Bench([REWARD], config=VerifierConfig(workers=1)) as bench:
            sandbox = bench.resources.sandbox
            await sandbox.run(run("open('left', 'w').write('x'); import math; math.pi = 3"))
            said = await sandbox.run(
                run("import os, math; print(os.listdir('.'), math.pi > 3, dict(os.environ))")
            )
            assert said.stdout == "[] True {}\n"
            first, second = [
                await sandbox.run(run("import random; print(random.random(), {'a', 'b'})")) for _ in "ab"
            ]
            assert first.stdout == second.stdout, "a verdict can be had again"

    asyncio.run(once())


def test_a_scratch_folder_is_emptied_whatever_is_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("stays")
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "closed" / "in").mkdir(parents=True)
    (folder / "closed").chmod(0)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1500):  # deeper than a path may be long
        os.mkdir("folder-of-twenty-chars", dir_fd=here)
        here, above = os.open("folder-of-twenty-chars", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    assert scratch.over(str(folder), max_bytes=1 << 30)
    scratch.clear(str(folder))
    assert list(folder.iterdir()) == []
    assert outside.read_text() == "stays"


def test_a_filter_is_made_for_both_architectures_and_no_other() -> None:
    for machine in ("x86_64", "aarch64"):
        code = seccomp.program(machine)
        assert len(code) // 8 < 4096
        (_, _, _, audit) = struct.unpack("=HBBI", code[8:16])
        assert audit == seccomp.MACHINES[machine].audit
    with pytest.raises(OSError, match="riscv64"):
        seccomp.program("riscv64")


def without_namespaces() -> None:
    """As in most pods: no new namespaces for this process and its children."""
    refuse = (seccomp.RETURN, 0, 0, seccomp.ERRNO | 1)
    steps = [(seccomp.LOAD, 0, 0, 0), (seccomp.JUMP_IF_EQUAL, 0, 1, UNSHARE), refuse]
    steps.append((seccomp.RETURN, 0, 0, seccomp.ALLOW))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(b"".join(struct.pack("=HBBI", *step) for step in steps))


def readable_interpreter() -> str:
    """One that the user of a pod can run. Skips where there is none."""
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
    """A fork server as the user of a pod; yields its report, and then what runs a program."""
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
def test_the_user_of_a_pod_has_the_walls_that_are_demanded(prepare: Callable[[], None] | None) -> None:
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
    """As a pod whose runtime has set some; the user of a pod cannot raise them."""
    for kind, limit in ((resource.RLIMIT_NOFILE, 20), (resource.RLIMIT_FSIZE, 1 << 20)):
        resource.setrlimit(kind, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (2, 2))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the user of a pod")
def test_a_stricter_limit_that_was_inherited_is_taken_as_it_is() -> None:
    with server_as_pod(with_stricter_limits) as ask:
        assert {*VerifierConfig().isolation.require} <= set(ask()["active"])
        reads = "[__import__('resource').getrlimit(kind)[1] for kind in (7, 1, 0)]"
        assert ask(run("", call=reads, seconds=4.0))["value"] == f'{{"l":[20,{1 << 20},2]}}'
