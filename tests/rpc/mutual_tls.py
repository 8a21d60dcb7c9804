"""Certificates for tests, servers that answer every method of Slipstream, and raw calls to them."""

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from slipstream.cli.clusters.authority import Authority, Pair, make_authority
from slipstream.config import RpcConfig, TlsConfig
from slipstream.rpc.channel import open_channel
from slipstream.rpc.security.identity import CALLERS
from slipstream.rpc.server import start_server
from slipstream.telemetry.logs import Log

DOMAIN = "test.slipstream"
HOUR = timedelta(hours=1)
LOCAL = ("localhost", "127.0.0.1", "::1")
GET_POLICY, JOIN = "/slipstream.v1.Fleet/GetPolicy", "/slipstream.v1.Fleet/Join"
SAMPLE = "/slipstream.v1.Replay/SampleBatch"
STREAMS = {JOIN: "stream_stream", SAMPLE: "unary_stream", "/grpc.health.v1.Health/Watch": "unary_stream"}


def an_authority(domain: str = DOMAIN) -> Authority:
    return make_authority(domain)


def a_pod(
    folder: Path,
    authority: Authority,
    role: str,
    *,
    names: Sequence[str] = LOCAL,
    valid: timedelta = HOUR,
    trusted: Sequence[Authority] = (),
    domain: str = DOMAIN,
) -> RpcConfig:
    """Write a pod's files to `folder`, and return its configuration; it trusts `authority` by default."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, authority.issue(role, names, valid=valid), trusted or (authority,))
    return config_of(folder, domain=domain)


def write(folder: Path, pair: Pair, trusted: Sequence[Authority]) -> None:
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "ca.crt").write_bytes(b"".join(each.pair.certificate for each in trusted))


def issue_with_uris(authority: Authority, uris: Sequence[str]) -> Pair:
    """Return a certificate with these URIs only, signed by the authority."""
    made = authority.issue("learner", (), valid=HOUR)
    template = x509.load_pem_x509_certificate(made.certificate)
    signer, key = (load_pem_private_key(pair.key, password=None) for pair in (authority.pair, made))
    assert isinstance(signer, EllipticCurvePrivateKey)
    assert isinstance(key, EllipticCurvePrivateKey)
    names = [x509.DNSName("somebody"), *map(x509.UniformResourceIdentifier, uris)]
    signed = (
        x509.CertificateBuilder(template.issuer, template.subject, key.public_key(), template.serial_number)
        .not_valid_before(template.not_valid_before_utc)
        .not_valid_after(template.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, SHA256())
    )
    return Pair(certificate=signed.public_bytes(Encoding.PEM), key=made.key)


def config_of(folder: Path, *, domain: str = DOMAIN) -> RpcConfig:
    files = {"certificate": folder / "tls.crt", "key": folder / "tls.key", "authority": folder / "ca.crt"}
    return RpcConfig(tls=TlsConfig(**files, trust_domain=domain))


class WrittenLog:
    """A log, and the lines that were written to it."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.log = Log(pod="it", stream=self._stream)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@asynccontextmanager
async def answering(
    config: RpcConfig,
    *,
    address: str = "127.0.0.1:0",
    log: Log | None = None,
    connection_seconds: float | None = None,
) -> AsyncIterator[str]:
    """Start a server whose methods return the caller, streams once per message, and yield its address."""
    server = await start_server(
        address, _register, config=config, log=log, connection_seconds=connection_seconds
    )
    try:
        yield server.address
    finally:
        await server.stop(grace=0)


@asynccontextmanager
async def calling(address: str, config: RpcConfig, *, log: Log | None = None) -> AsyncIterator[Any]:
    async with open_channel(address, config, log=log) as channel:
        yield channel


async def call(channel: Any, method: str = GET_POLICY) -> bytes:
    """Call any method of Slipstream, and return the first response.

    If a server refuses a call while its request is being written, grpc.aio reports an internal error in place
    of the refusal. Such a call is made again.
    """
    kind = STREAMS.get(method, "unary_unary")
    if kind == "unary_unary":
        return bytes(await getattr(channel, kind)(method, None, None)(b"", timeout=5))
    for _ in range(20):
        running = getattr(channel, kind)(method, None, None)(
            iter([b""]) if kind == "stream_stream" else b"", timeout=5
        )
        try:
            answer = await running.read()
        except grpc.aio.AioRpcError as error:
            if error.details() != "Internal error from Core":
                raise
            continue
        if answer is grpc.aio.EOF:
            raise AssertionError(f"{method} ended without an answer")
        return bytes(answer)
    raise AssertionError(f"{method}: 20 internal errors of grpc.aio")


def plain_channel(address: str) -> Any:
    return grpc.aio.insecure_channel(address)


def raw_channel(address: str, authority: Authority, pair: Pair | None) -> Any:
    """Return a client that does not check its own certificate, unlike Slipstream's; None sends none."""
    key, certificate = (pair.key, pair.certificate) if pair else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.pair.certificate, key, certificate)
    return grpc.aio.secure_channel(address, credentials)


def _register(server: grpc.aio.Server) -> None:
    async def unary(request: bytes, context: Any) -> bytes:
        return _caller(context)

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        if isinstance(request, bytes):
            yield _caller(context)
            return
        async for _ in request:
            yield _caller(context)

    for method in CALLERS:
        _, service, name = method.split("/")
        kind = STREAMS.get(method, "unary_unary")
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        handler = make(unary if kind == "unary_unary" else stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))


def _caller(context: Any) -> bytes:
    """Return the address of the connection and the certificate of the client."""
    shown = context.auth_context().get("x509_pem_cert", [b""])[0]
    return str(context.peer()).encode() + b"\n" + bytes(shown)
