"""A whole run of real processes over mutual TLS, with the certificates of `slipstream certs`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from slipstream.cli.__main__ import main
from slipstream.config import RpcConfig, TlsConfig
from slipstream.rpc.channel import open_channel
from slipstream.v1 import learner_pb2, replay_pb2
from slipstream.v1.learner_pb2_grpc import FleetStub
from slipstream.v1.replay_pb2_grpc import ReplayStub
from system.driver import BASE

pytestmark = pytest.mark.chart

STEPS = 12
TRUST_DOMAIN = "circle.test"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def tls_of(directory: Path, role: str) -> TlsConfig:
    folder = directory / "certs" / role
    files = {"certificate": folder / "tls.crt", "key": folder / "tls.key", "authority": folder / "ca.crt"}
    return TlsConfig(**files, trust_domain=TRUST_DOMAIN)


class PodsOfOneRun:
    """The pods of one run; every wait has a limit, and its failure shows the logs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (directory / "run.yaml").write_text(BASE)
        self._settings = [
            f"model.path={directory / 'model'}",
            "model.tiny=null",
            f"run_dir={directory / 'run'}",
        ]
        self._settings += [
            f"learner.steps={STEPS}",
            "rollout.engine=emulated",
            "learner.least_step_seconds=0.3",
        ]

    def start(self, role: str, addresses: Mapping[str, str], *settings: str) -> str:
        """Start a pod, wait until it is ready, and return its address."""
        ready = self.directory / f"{role}.json"
        tls = [f"rpc.tls.{k}={v}" for k, v in tls_of(self.directory, role).model_dump(mode="json").items()]
        sets = [part for setting in (*self._settings, *tls, *settings) for part in ("--set", setting)]
        command = [sys.executable, "-m", f"slipstream.{role}", "--config", str(self.directory / "run.yaml")]
        environment = {f"SLIPSTREAM_{pod.upper()}_ADDRESS": address for pod, address in addresses.items()}
        with (self.directory / f"{role}.log").open("wb") as log:
            self.processes[role] = subprocess.Popen(
                [*command, *sets, "--ready-file", str(ready), "--parent", str(os.getpid())],
                env=ENVIRONMENT | environment,
                stdout=log,
                stderr=log,
            )
        self.wait_until(f"{role} is ready", ready.exists)
        return str(json.loads(ready.read_text())["address"])

    def log(self, role: str) -> str:
        return (self.directory / f"{role}.log").read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"--- {role}\n{self.log(role)[-3000:]}" for role in self.processes)

    def steps(self) -> int:
        file = self.directory / "run" / "metrics.jsonl"
        rows = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
        return sum(row["event"] == "step" for row in rows)

    def wait_until(
        self, what: str, condition: Callable[[], bool], *, except_pods: Sequence[str] = ()
    ) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            ended = [r for r, p in self.processes.items() if r not in except_pods and p.poll() is not None]
            assert not ended, f"{ended} ended before: {what}\n{self.logs()}"
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.logs()}"
            time.sleep(0.05)

    def stop(self, role: str) -> int:
        self.processes[role].send_signal(signal.SIGTERM)
        return self.processes[role].wait(20)


@contextmanager
def circle(directory: Path) -> Iterator[PodsOfOneRun]:
    made = PodsOfOneRun(directory)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait(10)


def response_of(address: str, tls: TlsConfig | None, what: str) -> Any:
    """Return the response of replay or of the learner."""

    async def ask() -> Any:
        async with open_channel(address, RpcConfig(tls=tls)) as channel:
            if what == "stats":
                return await ReplayStub(channel).GetStats(replay_pb2.GetStatsRequest(), timeout=5)
            return await FleetStub(channel).GetPolicy(learner_pb2.GetPolicyRequest(), timeout=5)

    return asyncio.run(ask())


def test_a_run_trains_over_mutual_tls_while_every_certificate_is_renewed(tmp_path: Path) -> None:
    certs = ["certs", str(tmp_path / "certs"), "--trust-domain", TRUST_DOMAIN]
    assert main(certs) == 0
    (tmp_path / "run.yaml").write_text(BASE)
    warmup = ["warmup", str(tmp_path / "run.yaml"), "--steps", "0", "--output", str(tmp_path / "model")]
    subprocess.run([sys.executable, "-m", "slipstream.cli", *warmup], env=ENVIRONMENT, check=True)
    with circle(tmp_path) as pods:
        addresses = {"replay": pods.start("replay", {}), "verifier": pods.start("verifier", {})}
        addresses["learner"] = pods.start("learner", addresses)
        pods.start("rollout", addresses, "rollout.emulated.median_seconds=0.1")
        pods.start("actor", addresses)
        pods.wait_until("third step", lambda: pods.steps() >= 3)
        policy = response_of(addresses["learner"], tls_of(tmp_path, "probe"), "policy")
        assert [member.worker_id for member in policy.members] == ["rollout"]
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            response_of(addresses["replay"], None, "stats")
        assert main(certs) == 0
        pods.wait_until("last step", lambda: pods.steps() == STEPS, except_pods=["learner"])
        assert pods.processes["learner"].wait(60) == 0, pods.logs()
        stats = response_of(addresses["replay"], tls_of(tmp_path, "probe"), "stats")
        stopped = [pods.stop(role) for role in ("actor", "rollout", "verifier", "replay")]
        assert stopped == [0, 0, 0, 0], pods.logs()
    assert (stats.residual, stats.ledger.trained) == (0, STEPS * 8)
    assert "certificate renewed" in pods.log("rollout")
    assert "certificate renewed" in pods.log("actor")
    assert "certificate renewed" in pods.log("learner")
    refusals = [line for line in pods.logs().splitlines() if " refused reason=" in line or "call ref" in line]
    assert refusals, pods.log("replay")
    assert all("it does not speak TLS" in line for line in refusals), refusals
    assert "lost the learner" not in pods.log("rollout").split("the run is over")[0]
