"""Certificates are renewed while calls and streams run."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from rpc.mutual_tls import (
    HOUR,
    JOIN,
    LOCAL,
    WrittenLog,
    a_pod,
    an_authority,
    answering,
    call,
    calling,
    config_of,
    write,
)
from slipstream.cli.clusters.authority import Authority
from slipstream.config import RpcConfig
from slipstream.rpc.security.handshake import client_context


class Mounted:
    """A secret as kubelet mounts it: tls.crt ─▶ ..data/tls.crt, ..data ─▶ ..1; a renewal replaces ..data."""

    def __init__(self, folder: Path, authority: Authority, role: str) -> None:
        self.folder, self.role, self.count = folder, role, 0
        folder.mkdir()
        self.renew(authority, trusted=(authority,))
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")

    def renew(self, authority: Authority, *, trusted: tuple[Authority, ...]) -> None:
        self.count += 1
        made, swap = self.folder / f"..{self.count}", self.folder / "..data_tmp"
        made.mkdir()
        write(made, authority.issue(self.role, LOCAL, valid=HOUR), trusted)
        swap.symlink_to(made.name)
        swap.rename(self.folder / "..data")


def test_calls_and_a_stream_continue_while_certificates_and_authority_are_replaced(
    tmp_path: Path,
) -> None:
    old, new = an_authority(), an_authority()
    server, client = Mounted(tmp_path / "s", old, "learner"), Mounted(tmp_path / "c", old, "rollout")
    probe = Mounted(tmp_path / "p", old, "probe")
    pods = (server, client, probe)

    async def run() -> None:
        async with (
            answering(config_of(server.folder)) as address,
            calling(address, config_of(client.folder)) as channel,
            calling(address, config_of(probe.folder)) as unary,
        ):
            stream = channel.stream_stream(JOIN, None, None)()
            first, before = await ask(stream), await call(unary)
            for trusted, signer in (((old, new), old), ((old, new), new), ((new,), new)):
                for pod in pods:
                    pod.renew(signer, trusted=trusted)
                    await call(unary)
                    assert await ask(stream) == first  # the stream keeps its connection and certificate
            after = await call(unary)
            assert [issued_by(signer, before) for signer in (old, new)] == [True, False]
            assert [issued_by(signer, after) for signer in (old, new)] == [False, True]
            assert await asyncio.to_thread(shown_by, address, config_of(probe.folder)) == current(server)
            again = channel.stream_stream(JOIN, None, None)()
            assert issued_by(new, await ask(again))
            assert await ask(stream) == first
            assert connections_to(address) == 3
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            del stream  # a referenced call keeps its connection open
            await wait_until(lambda: connections_to(address) == 2)  # the old stream's connection is closed
            assert issued_by(new, await ask(again))

    asyncio.run(run())


def test_no_concurrent_call_fails_while_certificates_are_renewed_repeatedly(
    tmp_path: Path,
) -> None:
    authority = an_authority()
    server, client = (
        Mounted(tmp_path / "s", authority, "learner"),
        Mounted(tmp_path / "c", authority, "probe"),
    )

    async def run() -> int:
        stop, done = asyncio.Event(), 0
        async with (
            answering(config_of(server.folder)) as address,
            calling(address, config_of(client.folder)) as channel,
        ):

            async def keep_calling() -> None:
                nonlocal done
                while not stop.is_set():
                    await call(channel)
                    done += 1

            callers = [asyncio.create_task(keep_calling()) for _ in range(8)]
            for renewals in range(10):
                await asyncio.sleep(0.03)
                await wait_until(lambda calls=6 * renewals: done >= calls)
                server.renew(authority, trusted=(authority,))
                client.renew(authority, trusted=(authority,))
            stop.set()
            await asyncio.gather(*callers)
            await wait_until(lambda: connections_to(address) == 1)
        return done

    assert asyncio.run(run()) > 50


def test_an_incomplete_renewal_is_logged_once_and_not_used_until_it_is_complete(tmp_path: Path) -> None:
    written, authority = WrittenLog(), an_authority()

    async def run() -> None:
        served = a_pod(tmp_path / "s", authority, "learner")
        client = a_pod(tmp_path / "c", authority, "probe")
        pair = authority.issue("probe", (), valid=HOUR)
        async with answering(served) as address, calling(address, client, log=written.log) as channel:
            first = await call(channel)
            (tmp_path / "c" / "tls.key").write_bytes(pair.key)
            assert [await call(channel) for _ in range(3)] == [first] * 3
            (tmp_path / "c" / "tls.crt").unlink()
            assert [await call(channel) for _ in range(3)] == [first] * 3
            (tmp_path / "c" / "tls.crt").write_bytes(pair.certificate)
            assert pair.certificate in await call(channel)

    asyncio.run(run())
    mismatch, missing, renewed = written.lines
    assert "keeping the old" in mismatch
    assert "the key is not that of the certificate" in mismatch
    assert "tls.crt cannot be read: No such file or directory" in missing
    assert "certificate renewed role=probe" in renewed


def test_a_renewal_without_the_role_affects_the_next_call_and_not_a_running_stream(tmp_path: Path) -> None:
    authority = an_authority()

    async def run() -> str:
        served = a_pod(tmp_path / "s", authority, "learner")
        client = a_pod(tmp_path / "c", authority, "rollout")
        async with answering(served) as address, calling(address, client) as channel:
            stream = channel.stream_stream(JOIN, None, None)()
            await ask(stream)
            a_pod(tmp_path / "c", authority, "verifier")
            await ask(stream)
            try:
                await call(channel, JOIN)
            except grpc.aio.AioRpcError as error:
                return str(error.details())
            return "permitted"

    assert asyncio.run(run()).startswith("a verifier may not call /slipstream.v1.Fleet/Join")


async def ask(stream: Any) -> bytes:
    """Send one message, and return its response."""
    await stream.write(b"")
    return bytes(await asyncio.wait_for(stream.read(), 5))


def issued_by(authority: Authority, answer: bytes) -> bool:
    return authority.issued(answer.split(b"\n", 1)[1])


def shown_by(address: str, config: RpcConfig) -> int:
    """Return the serial number of the certificate that a server sends on a new connection."""
    assert config.tls is not None
    host, port = address.rsplit(":", 1)
    context = client_context(config.tls, check_name=True)
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"").serial_number


def current(pod: Mounted) -> int:
    return x509.load_pem_x509_certificate((pod.folder / "tls.crt").read_bytes()).serial_number


def connections_to(address: str) -> int:
    """Return the number of established TCP connections to a port in this network namespace."""
    port = f":{int(address.rsplit(':', 1)[1]):04X}"
    rows = [row.split() for name in ("tcp", "tcp6") for row in _rows(name)]
    return sum(row[2].endswith(port) and row[3] == "01" for row in rows)


def _rows(name: str) -> list[str]:
    path = Path(f"/proc/{os.getpid()}/net/{name}")
    return path.read_text().splitlines()[1:] if path.exists() else []


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the kernel has no event for it)
            await asyncio.sleep(0.02)
