"""Client and server refuse wrong certificates, and both log the reason."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from rpc.mutual_tls import (
    HOUR,
    LOCAL,
    WrittenLog,
    a_pod,
    an_authority,
    answering,
    call,
    calling,
    config_of,
    plain_channel,
    raw_channel,
)
from slipstream.config import RpcConfig
from slipstream.rpc.security.handshake import client_context

SCORE = "/slipstream.v1.Verifier/Score"
EXPIRED = timedelta(minutes=-1)
SHORT = timedelta(seconds=1.6)  # expiry is cut to whole seconds: in 0.6 to 1.6 seconds


def client_says(tmp_path: Path, served: RpcConfig, client: RpcConfig) -> tuple[str, list[str]]:
    """Return the status of a call and the lines of the client's log."""
    written = WrittenLog()

    async def ask() -> str:
        async with answering(served) as address, calling(address, client, log=written.log) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
            await wait_for(lambda: bool(written.lines))
        return caught.value.code().name

    return asyncio.run(ask()), written.lines


async def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (the log has no event for it)
            await asyncio.sleep(0.02)


def test_a_client_logs_that_it_does_not_trust_the_servers_authority(tmp_path: Path) -> None:
    ours, theirs = an_authority(), an_authority()
    served = a_pod(tmp_path / "s", theirs, "learner", trusted=(ours, theirs))
    code, lines = client_says(tmp_path, served, a_pod(tmp_path / "c", ours, "probe"))
    assert (code, len(lines)) == ("UNAVAILABLE", 1)
    assert "warning it: no secure connection peer=127.0.0.1:" in lines[0]
    assert "its certificate is not signed by our authority: compare rpc.tls.authority" in lines[0]


def test_a_client_logs_that_the_server_has_another_name(tmp_path: Path) -> None:
    authority = an_authority()
    served = a_pod(tmp_path / "s", authority, "learner", names=("learner.example",))
    code, lines = client_says(tmp_path, served, a_pod(tmp_path / "c", authority, "probe"))
    assert (code, len(lines)) == ("UNAVAILABLE", 1)
    assert "its certificate is for another name: dial a name that it carries" in lines[0]


def test_one_reason_of_many_failed_calls_is_logged_once(tmp_path: Path) -> None:
    written = WrittenLog()

    async def ask() -> None:
        served = a_pod(tmp_path / "s", an_authority(), "learner")
        client = a_pod(tmp_path / "c", an_authority(), "probe")
        async with answering(served) as address, calling(address, client, log=written.log) as channel:
            failed = await asyncio.gather(*(call(channel) for _ in range(5)), return_exceptions=True)
            assert {error.code().name for error in failed} == {"UNAVAILABLE"}
            await wait_for(lambda: bool(written.lines))
            await asyncio.sleep(0.2)

    asyncio.run(ask())
    assert len(written.lines) == 1


def test_a_client_logs_that_the_certificate_of_the_server_has_expired(tmp_path: Path) -> None:
    authority, written = an_authority(), WrittenLog()

    async def ask() -> None:
        client = a_pod(tmp_path / "c", authority, "probe")
        pair = authority.issue("learner", LOCAL, valid=EXPIRED)
        server = grpc.aio.server()
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(pair.key, pair.certificate)])
        )
        await server.start()
        async with calling(f"127.0.0.1:{port}", client, log=written.log) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await call(channel)
            await wait_for(lambda: bool(written.lines))
        await server.stop(None)

    asyncio.run(ask())
    assert "its certificate has expired: renew it" in written.lines[0]


def test_a_client_logs_that_the_server_refused_it_and_why(tmp_path: Path) -> None:
    ours, theirs = an_authority(), an_authority()
    served = a_pod(tmp_path / "s", theirs, "learner")
    client = a_pod(tmp_path / "c", ours, "probe", trusted=(ours, theirs))
    code, lines = client_says(tmp_path, served, client)
    assert (code, len(lines)) == ("UNAVAILABLE", 1)
    assert "it refused our certificate, and its log says why: compare rpc.tls.authority" in lines[0]


def test_many_calls_that_fail_at_the_same_time_are_one_line(tmp_path: Path) -> None:
    ours, theirs, written = an_authority(), an_authority(), WrittenLog()

    async def ask() -> None:
        served = a_pod(tmp_path / "s", theirs, "learner", trusted=(ours, theirs))
        client = a_pod(tmp_path / "c", ours, "probe")
        async with answering(served) as address, calling(address, client, log=written.log) as channel:
            failed = await asyncio.gather(*(call(channel) for _ in range(100)), return_exceptions=True)
            assert all(isinstance(each, grpc.aio.AioRpcError) for each in failed)
            await wait_for(lambda: bool(written.lines))
            await asyncio.sleep(0.3)

    asyncio.run(ask())
    assert len(written.lines) == 1, written.lines


def test_a_client_logs_that_the_server_has_no_tls(tmp_path: Path) -> None:
    code, lines = client_says(tmp_path, RpcConfig(), a_pod(tmp_path, an_authority(), "probe"))
    assert (code, len(lines)) == ("UNAVAILABLE", 1)
    assert "it does not speak TLS: set rpc.tls on both sides, or on neither" in lines[0]


def test_a_server_that_does_not_listen_is_no_fault_of_certificates(tmp_path: Path) -> None:
    written, client = WrittenLog(), a_pod(tmp_path, an_authority(), "probe")

    async def ask() -> None:
        async with calling("127.0.0.1:1", client, log=written.log) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
                await call(channel)
            await asyncio.sleep(0.3)

    asyncio.run(ask())
    assert written.lines == []


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A verifier pod that serves TLS."""

    process: "subprocess.Popen[bytes]"
    address: str
    log: Path

    def log_lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@contextmanager
def verifier(folder: Path, config: RpcConfig) -> Iterator[Running]:
    assert config.tls is not None
    ready, log = folder / "ready.json", folder / "verifier.log"
    (folder / "run.yaml").write_text(json.dumps({"rpc": {"tls": config.tls.model_dump(mode="json")}}))
    command = [sys.executable, "-m", "slipstream.verifier", "--config", str(folder / "run.yaml")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready)], stderr=stream, stdout=stream, env=environment
        )
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        address = json.loads(ready.read_text())["address"]
        yield Running(process=process, address=address, log=log)
    finally:
        process.kill()
        process.wait(10)


async def refused(channel: grpc.aio.Channel) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(channel, SCORE)
    await channel.close()
    return caught.value.code().name


async def attempt(pod: Running, make: Callable[[str], grpc.aio.Channel], reason: str) -> str:
    """Make one call, wait until the pod has logged the reason, and return the status of the call."""
    before = len(pod.log_lines())
    status = await refused(make(pod.address))
    await wait_for(lambda: reason in "\n".join(pod.log_lines()[before:]), 5)
    return status


def test_a_server_logs_why_it_refuses_a_client(tmp_path: Path) -> None:
    ours, theirs = an_authority(), an_authority()
    good = ours.issue("rollout", (), valid=HOUR)
    attempts: list[tuple[Callable[[str], grpc.aio.Channel], str]] = [
        (
            lambda at: raw_channel(at, ours, theirs.issue("rollout", (), valid=HOUR)),
            "its certificate is not signed by our authority",
        ),
        (
            lambda at: raw_channel(at, ours, ours.issue("rollout", (), valid=EXPIRED)),
            "its certificate has expired: renew it",
        ),
        (lambda at: raw_channel(at, ours, None), "it showed no certificate: set rpc.tls on its side"),
        (plain_channel, "it does not speak TLS: set rpc.tls on both sides"),
        (
            lambda at: raw_channel(at.replace("127.0.0.1", "localhost"), ours, good),
            "it calls us localhost, which is not a name of our certificate",
        ),
    ]
    with verifier(tmp_path, a_pod(tmp_path / "v", ours, "verifier", names=("127.0.0.1",))) as pod:
        for make, reason in attempts:
            assert asyncio.run(attempt(pod, make, reason)) == "UNAVAILABLE", reason
        assert all(" verifier: " in line for line in pod.log_lines()), pod.log_lines()
        pod.process.send_signal(signal.SIGTERM)
        assert pod.process.wait(15) == 0
        assert pod.log_lines()[-1].endswith("verifier: stopped")


def test_a_running_client_whose_certificate_expires_is_refused_and_logs_the_reason(tmp_path: Path) -> None:
    authority, written = an_authority(), WrittenLog()

    async def ask() -> str:
        served = a_pod(tmp_path / "s", authority, "learner")
        client = a_pod(tmp_path / "c", authority, "probe", valid=SHORT)
        async with answering(served) as address, calling(address, client, log=written.log) as channel:
            await asyncio.sleep(2)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
            await wait_for(lambda: bool(written.lines))
        return caught.value.code().name

    assert asyncio.run(ask()) == "UNAVAILABLE"
    assert "it refused our certificate, which has expired: renew it" in written.lines[0]


def test_the_side_that_sees_a_wrong_trust_domain_refuses_it(tmp_path: Path) -> None:
    ours, theirs, written = an_authority(), an_authority("elsewhere"), WrittenLog()

    async def ask() -> str:
        served = a_pod(tmp_path / "s", ours, "learner", trusted=(ours, theirs))
        client = a_pod(tmp_path / "c", theirs, "probe", trusted=(ours, theirs), domain="elsewhere")
        async with (
            answering(served, log=written.log) as address,
            calling(address, client) as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
        return str(caught.value.details())

    reason = "it is of the trust domain elsewhere, and ours is test.slipstream"
    assert reason in asyncio.run(ask())
    assert reason in written.lines[0]


def lines_of(folder: Path, *settings: str, pod: str = "verifier") -> tuple[int, list[str]]:
    (folder / "run.yaml").write_text("{}")
    sets = [part for setting in settings for part in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", f"slipstream.{pod}", "--config", str(folder / "run.yaml"), *sets],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stderr.splitlines()


def settings_of(folder: Path) -> list[str]:
    tls = config_of(folder).tls
    assert tls is not None
    return [f"rpc.tls.{key}={value}" for key, value in tls.model_dump(mode="json").items()]


def test_a_pod_with_the_certificate_of_another_role_does_not_start(tmp_path: Path) -> None:
    a_pod(tmp_path / "r", an_authority(), "replay")
    status, output = lines_of(tmp_path, *settings_of(tmp_path / "r"))
    assert (status, len(output)) == (2, 1)
    assert "rpc.tls.certificate: " in output[0]
    assert output[0].endswith("is that of a replay, and this pod is a verifier: give each pod its own")


def test_a_pod_without_its_certificate_files_does_not_start(tmp_path: Path) -> None:
    status, output = lines_of(tmp_path, *settings_of(tmp_path / "nothing"))
    assert (status, len(output)) == (2, 1)
    assert "rpc.tls.certificate: " in output[0]
    assert "tls.crt cannot be read: No such file or directory; `slipstream certs` makes" in output[0]


def test_no_tls_session_is_resumed_because_that_would_hide_an_expired_certificate(tmp_path: Path) -> None:
    authority = an_authority()
    client = a_pod(tmp_path / "c", authority, "probe").tls
    assert client is not None
    context = client_context(client, check_name=True)

    def connect(address: str, session: ssl.SSLSession | None) -> ssl.SSLSocket:
        host, port = address.rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), timeout=5)
        secure = context.wrap_socket(plain, server_hostname=host, session=session)
        secure.recv(1)  # session tickets come after the handshake
        return secure

    async def reused() -> bool | None:
        async with answering(a_pod(tmp_path / "s", authority, "learner")) as address:
            with await asyncio.to_thread(connect, address, None) as first:
                assert first.session is not None
                with await asyncio.to_thread(connect, address, first.session) as second:
                    return second.session_reused

    assert asyncio.run(reused()) is False
