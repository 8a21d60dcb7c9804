"""The console of a release: its run may not exist yet, and replay has the address of its configuration."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest
from console.runs import make_run
from fastapi.testclient import TestClient
from httpx import ASGITransport, AsyncClient
from slipstream.config import RunConfig, parse_config
from slipstream.console.__main__ import main
from slipstream.console.app import Runs, make_app
from slipstream.console.catalogue import expect_run, open_catalogue
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1.replay_pb2_grpc import ReplayServicer, add_ReplayServicer_to_server

TOKEN = "a-secret-of-32-characters-at-most"
START_SECONDS = 60


class Replay(ReplayServicer):
    """Replay at version 7, which has lost a group."""

    async def GetStats(self, request: Any, context: Any) -> pb.GetStatsResponse:
        return pb.GetStatsResponse(version=7)

    async def GetActivity(self, request: Any, context: Any) -> pb.GetActivityResponse:
        return pb.GetActivityResponse(ledger=pb.Ledger(leased=1, retired={"sandbox": 2}))

    async def ListRollouts(self, request: Any, context: Any) -> pb.ListRolloutsResponse:
        return pb.ListRolloutsResponse()


@asynccontextmanager
async def replay() -> AsyncIterator[RunConfig]:
    """Serve replay, and return the configuration of a pod that reaches it."""
    server = grpc.aio.server()
    add_ReplayServicer_to_server(Replay(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield parse_config({"replay": {"address": f"127.0.0.1:{port}"}})
    finally:
        await server.stop(None)


def test_the_run_of_the_release_is_asked_at_the_address_of_the_configuration_and_no_other_run_is(
    tmp_path: Path,
) -> None:
    for name in ("own", "old"):
        make_run(tmp_path / name, steps=1)

    async def live() -> list[Any]:
        async with replay() as pod:
            runs = Runs(open_catalogue(tmp_path / "own"), pod)
            answers = [await runs.view(name).live() for name in ("own", "old")]
            await runs.close()
            return answers

    own, old = asyncio.run(live())
    assert (own["announced_version"], old) == (7, None)


def test_a_run_whose_replay_answers_is_running_and_silent_and_its_ledger_raises_alarms(
    tmp_path: Path,
) -> None:
    folder = make_run(tmp_path / "own", steps=3)

    async def asked() -> Any:
        async with replay() as pod:
            app = make_app(open_catalogue(folder), pod=pod)
            async with AsyncClient(transport=ASGITransport(app), base_url="http://localhost") as page:
                return (await page.get("/api/run")).json()

    state = asyncio.run(asked())
    assert (state["state"], state["words"]) == ("running", "training")
    assert {"silent", "residual", "retired"} <= {alarm["name"] for alarm in state["alarms"]}


def test_a_run_that_has_not_begun_is_not_listed_and_then_is(tmp_path: Path) -> None:
    pod = parse_config({"replay": {"address": "127.0.0.1:1"}})
    page = TestClient(make_app(expect_run(tmp_path / "first"), pod=pod))
    assert page.get("/api/runs").json()["runs"] == []
    assert page.get("/api/run").status_code == 404
    make_run(tmp_path / "first", steps=1)
    assert page.get("/api/runs").json()["runs"] == ["first"]
    assert page.get("/api/run").json()["step"] == 1


@pytest.mark.parametrize("read_only", [True, False])
def test_the_page_learns_whether_visitors_may_only_look(tmp_path: Path, read_only: bool) -> None:
    app = make_app(expect_run(tmp_path / "first"), read_only=read_only)
    assert TestClient(app).get("/api/runs").json()["read_only"] is read_only
    assert app.state.read_only is read_only


def test_the_program_of_a_pod_serves_before_its_run_begins_and_ends_with_sigterm(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("name: first\n")
    (tmp_path / "cluster.yaml").write_text("replay: {address: 'replay:50051'}\nrpc: {plaintext: true}\n")
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-m", "slipstream.console", str(tmp_path / "runs" / "first")]
    command += [f"--config={tmp_path / name}" for name in ("run.yaml", "cluster.yaml")]
    command += ["--host=::", "--port=0", f"--token-file={tmp_path / 'token'}", "--read-only"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": "/tmp"}
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().strip("/\n").rpartition(":")[2])
        connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        for path in ("/startupz", "/readyz", "/livez"):
            connection.request("GET", path, headers={"host": "10.0.0.7:8080"})
            assert json.loads(connection.getresponse().read()) == {"ok": True}
        connection.request("GET", "/api/runs", headers={"authorization": f"Bearer {TOKEN}"})
        answer = json.loads(connection.getresponse().read())
        assert (answer["first"], answer["runs"], answer["read_only"]) == ("first", [], True)
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def test_the_certificate_of_another_pod_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["certs", str(tmp_path / "certs"), "--roles", "learner"]
    subprocess.run([sys.executable, "-m", "slipstream.cli", *words], check=True, capture_output=True)
    folder = tmp_path / "certs" / "learner"
    tls = {"certificate": f"{folder}/tls.crt", "key": f"{folder}/tls.key", "authority": f"{folder}/ca.crt"}
    config = {"rpc": {"tls": {**tls, "trust_domain": "slipstream"}}}
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    assert main([str(tmp_path / "first"), "--config", str(tmp_path / "run.yaml")]) == 2
    assert "is that of a learner, and this pod is a console" in capsys.readouterr().err
