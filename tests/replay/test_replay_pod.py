"""The pod as a process: it announces itself, drains on SIGTERM, and keeps its ledger over a restart."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replay.driver import run_config, stub_of
from slipstream.rpc.channel import open_channel
from slipstream.v1 import replay_pb2 as pb


class Process:
    """A running pod, and the content of its ready file."""

    def __init__(self, child: subprocess.Popen[bytes], ready: dict[str, Any], log: Path) -> None:
        self.child = child
        self.address = str(ready["address"])
        self.metrics_port = int(ready["metrics_port"])
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextmanager
def pod(directory: Path, *arguments: str) -> Iterator[Process]:
    """Run a pod on a run directory; it is killed at the end if it still runs."""
    config, ready, log = directory / "run.yaml", directory / "ready.json", directory / "pod.log"
    config.write_text(yaml.safe_dump({"name": "pod-test", "run_dir": str(directory)}))
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "slipstream.replay", "--config", str(config), "--ready-file", str(ready)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("ab") as stream:
        child = subprocess.Popen([*command, *arguments], stderr=stream, env=environment)
    try:
        yield Process(child, _read_when_there(ready, child, log), log)
    finally:
        child.kill()
        child.wait(10)


@asynccontextmanager
async def calling(address: str) -> AsyncIterator[Any]:
    async with open_channel(address, run_config().rpc) as channel:
        yield stub_of(channel)


def test_the_pod_serves_announces_itself_and_ends_with_status_0_on_sigterm(tmp_path: Path) -> None:
    async def healthy(address: str) -> int:
        async with open_channel(address, run_config().rpc) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            return int((await check).status)

    with pod(tmp_path) as process:
        assert asyncio.run(healthy(process.address)) == health_pb2.HealthCheckResponse.SERVING
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(10) == 0
        assert "ledger found" in process.log


def test_a_drain_ends_the_waits_of_callers(tmp_path: Path) -> None:
    async def wait_for_batch(process: Process) -> None:
        async with calling(process.address) as stub:
            request = pb.SampleBatchRequest(
                groups=4, max_staleness=8, wait_seconds=60, hand_out=pb.HandOut(number=1)
            )
            waiting = asyncio.create_task(_collect(stub.SampleBatch(request)))
            await asyncio.sleep(0.2)
            process.child.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(waiting, 3) == []

    with pod(tmp_path) as process:
        asyncio.run(wait_for_batch(process))
        assert process.child.wait(10) == 0


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_pod_that_ends_and_starts_again_has_the_same_ledger(tmp_path: Path, end: signal.Signals) -> None:
    async def lease(address: str, prompts: int) -> list[pb.Lease]:
        async with calling(address) as stub:
            return list((await stub.LeasePrompts(_leasing(prompts))).leases)

    async def stats(address: str) -> pb.GetStatsResponse:
        async with calling(address) as stub:
            response: pb.GetStatsResponse = await stub.GetStats(pb.GetStatsRequest())
            return response

    with pod(tmp_path) as process:
        asyncio.run(lease(process.address, 3))
        before = asyncio.run(stats(process.address))
        process.child.send_signal(end)
        process.child.wait(10)
    with pod(tmp_path) as process:
        assert asyncio.run(stats(process.address)) == before
        assert [next_lease.dispatch_index for next_lease in asyncio.run(lease(process.address, 1))] == [3]
        assert "leased=3" in process.log


def test_a_pod_that_is_killed_while_admission_is_paused_starts_again_paused(tmp_path: Path) -> None:
    async def pause(address: str) -> pb.Admission:
        async with calling(address) as stub:
            request = pb.SetAdmissionRequest(paused=True, by="anna", reason="new disk")
            return (await stub.SetAdmission(request)).admission

    async def look(address: str) -> tuple[pb.Admission, int]:
        async with calling(address) as stub:
            leases = (await stub.LeasePrompts(_leasing(1))).leases
            return (await stub.GetStats(pb.GetStatsRequest())).admission, len(leases)

    with pod(tmp_path) as process:
        before = asyncio.run(pause(process.address))
        process.child.kill()
        process.child.wait(10)
    with pod(tmp_path) as process:
        after, leases = asyncio.run(look(process.address))
        assert (after.paused, after.by, after.reason) == (True, "anna", "new disk")
        assert (after.since, leases) == (before.since, 0)


def test_the_metrics_page_shows_the_ledger_and_overdue_leases_are_swept(tmp_path: Path) -> None:
    async def lease(address: str) -> None:
        async with calling(address) as stub:
            await stub.LeasePrompts(_leasing(2))

    with pod(tmp_path, "--set", "replay.lease_seconds=0.1") as process:
        asyncio.run(lease(process.address))
        wanted = 'slipstream_ledger_groups{reason="",state="expired"} 2.0'
        deadline = time.monotonic() + 10
        while wanted not in (page := _metrics(process)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert wanted in page
        assert "slipstream_ledger_residual 0.0" in page
        assert "slipstream_announced_version 0.0" in page
        assert "slipstream_admission_free 192.0" in page


def test_a_port_in_use_ends_the_pod_with_one_clear_line(tmp_path: Path) -> None:
    with pod(tmp_path) as first:
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(AssertionError), pod(other, "--set", f"replay.address={first.address}"):
            pytest.fail("it must not become ready")
        log = (other / "pod.log").read_text()
        assert f"cannot listen on {first.address}: is the port in use?" in log
        assert "Traceback" not in log


async def _collect(stream: Any) -> list[Any]:
    return [response async for response in stream]


def _leasing(prompts: int) -> pb.LeasePromptsRequest:
    return pb.LeasePromptsRequest(worker_id="w", max_prompts=prompts)


def _metrics(process: Process) -> str:
    with urlopen(f"http://127.0.0.1:{process.metrics_port}/metrics", timeout=5) as response:
        return str(response.read().decode())


def _read_when_there(ready: Path, child: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert child.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    content: dict[str, Any] = json.loads(ready.read_text())
    return content
