"""Measures the bandwidth between two processes over the path of weight broadcasts.

    sender (rank 0)                                receiver (rank 1)
    invite              ──── TCP ────────────▶     read the invitation
    form the group      ◀── rendezvous ──────▶     form the group
    each round: send    ──── group or TCP ───▶     receive
                        ◀── TCP ──────────────     confirm

Groups, buckets and checksums are those of a publication. The receiver confirms each round, so a round ends
when the bytes have arrived, not when the sender has handed them over. Every wait ends at the timeout.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Literal

import torch

from slipstream.telemetry.logs import Log
from slipstream.weights.group import Rendezvous, RendezvousStore, TransferError, WeightGroup, form_group
from slipstream.weights.manifest import Manifest, plan
from slipstream.weights.transfer import Buffers, receive, send

Kind = Literal["broadcast", "publication", "tcp"]
KINDS: tuple[Kind, ...] = ("broadcast", "publication", "tcp")
GIGA = 1e9
DTYPE = torch.bfloat16
DONE = b"."
EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size of the measurement: `rounds` of `buckets` of `bucket_bytes`, after one warm-up round."""

    bucket_bytes: int
    buckets: int
    rounds: int

    @property
    def nbytes(self) -> int:
        """Size of a round in bytes."""
        return self.bucket_bytes * self.buckets

    def manifest(self) -> Manifest:
        """Return the layout of a publication of this size, with one tensor in each bucket."""
        words = self.bucket_bytes // DTYPE.itemsize
        shapes = [(f"bucket {number}", (words,)) for number in range(self.buckets)]
        return plan(shapes, dtype=DTYPE, bucket_bytes=self.bucket_bytes, model_fingerprint="probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The sender's message to the receiver: the address of the rendezvous, and the load."""

    host: str
    port: int
    nonce: str = field(repr=False)
    timeout_seconds: float
    load: dict[str, int]

    def rendezvous(self, *, rank: int) -> Rendezvous:
        """Return the rendezvous of one of the two members."""
        return Rendezvous(
            epoch=EPOCH,
            rank=rank,
            world_size=2,
            store_host=self.host,
            store_port=self.port,
            timeout_seconds=self.timeout_seconds,
            nonce=bytes.fromhex(self.nonce),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The seconds of each counted round of one kind, and the bytes of a round."""

    kind: Kind
    nbytes: int
    seconds: tuple[float, ...]

    @property
    def gigabytes_per_second(self) -> float:
        """Median over the rounds, in 10^9 bytes per second."""
        return self.nbytes / median(self.seconds) / GIGA

    @property
    def slowest(self) -> float:
        """Bandwidth of the slowest round, in 10^9 bytes per second."""
        return self.nbytes / max(self.seconds) / GIGA

    @property
    def fastest(self) -> float:
        """Bandwidth of the fastest round, in 10^9 bytes per second."""
        return self.nbytes / min(self.seconds) / GIGA


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of the measurement: the group, the TCP connection, and the device of the weights."""

    group: WeightGroup
    connection: socket.socket
    device: torch.device
    load: Load
    buffers: Buffers
    progress: Callable[[], None]

    @property
    def addresses(self) -> tuple[str, str]:
        """The IP addresses of this end and of the other end."""
        return self.connection.getsockname()[0], self.connection.getpeername()[0]


@contextmanager
def sending(
    connection: socket.socket,
    load: Load,
    *,
    host: str,
    timeout_seconds: float,
    device: torch.device,
    log: Log,
    progress: Callable[[], None],
) -> Iterator[End]:
    """Invite the receiver, at the other end of the connection, into a group, and yield the sender's end.

    `host`: the address of this machine on which the rendezvous listens. Errors: TransferError.
    """
    connection.settimeout(timeout_seconds)
    with _as_transfer_error("the forming of the group"), _store(host, timeout_seconds, log) as store:
        invitation = Invitation(
            host=store.host,
            port=store.port,
            nonce=store.server.issue_nonce(connections=1).hex(),
            timeout_seconds=timeout_seconds,
            load=asdict(load),
        )
        connection.sendall(json.dumps(asdict(invitation)).encode() + b"\n")
        own = replace(invitation, nonce=store.server.issue_nonce(connections=1).hex())
        with _formed(own.rendezvous(rank=0), device, progress) as group:
            yield _end(group, connection, device, load, progress)


def invitation(connection: socket.socket) -> Invitation:
    """Read the invitation of the sender from a connection. Errors: TransferError."""
    with _as_transfer_error("the invitation of the sender"):
        return Invitation(**json.loads(_line(connection)))


@contextmanager
def receiving(
    connection: socket.socket,
    invitation: Invitation,
    *,
    device: torch.device,
    progress: Callable[[], None],
) -> Iterator[End]:
    """Join the group of the invitation, and yield the receiver's end. Errors: TransferError."""
    connection.settimeout(invitation.timeout_seconds)
    load = Load(**invitation.load)
    with _formed(invitation.rendezvous(rank=1), device, progress) as group:
        yield _end(group, connection, device, load, progress)


def _end(
    group: WeightGroup,
    connection: socket.socket,
    device: torch.device,
    load: Load,
    progress: Callable[[], None],
) -> End:
    return End(
        group=group,
        connection=connection,
        device=device,
        load=load,
        buffers=Buffers(device),
        progress=progress,
    )


def measure_as_sender(end: End, kind: Kind) -> Measurement:
    """Send all rounds of a kind, and measure each until the receiver confirms it. Errors: TransferError."""
    send_round = SENDERS[kind]
    seconds = []
    with _as_transfer_error(f"a round of kind {kind}"):
        for number in range(end.load.rounds + 1):
            started = time.perf_counter()
            send_round(end, number)
            _wait_for_confirmation(end)
            seconds.append(time.perf_counter() - started)
            end.progress()
    return Measurement(kind=kind, nbytes=end.load.nbytes, seconds=tuple(seconds[1:]))


def answer_as_receiver(end: End, kind: Kind) -> None:
    """Receive and confirm all rounds of a kind. Errors: TransferError."""
    receive_round = RECEIVERS[kind]
    with _as_transfer_error(f"a round of kind {kind}"):
        for number in range(end.load.rounds + 1):
            receive_round(end, number)
            end.connection.sendall(DONE)
            end.progress()


def _broadcast(end: End, _: int) -> None:
    """Broadcast buckets without packing and without checksums."""
    buffer = torch.zeros(end.load.bucket_bytes, dtype=torch.uint8, device=end.device)
    for _bucket in range(end.load.buckets):
        end.group.broadcast(buffer)
        end.progress()


def _send_publication(end: End, number: int) -> None:
    """Send as the learner does in a publication, with packing and checksums."""
    manifest = end.load.manifest()
    weights = torch.ones(manifest.tensors[0].shape, dtype=DTYPE, device=end.device)
    tensors = {spec.name: weights for spec in manifest.tensors}
    send(
        end.group,
        manifest,
        tensors,
        version=number,
        device=end.device,
        buffers=end.buffers,
        progress=end.progress,
    )


def _receive_publication(end: End, number: int) -> None:
    """Receive as a rollout does, with the verification of checksums, without loading the weights."""
    manifest = end.load.manifest()
    buckets = receive(
        end.group,
        manifest,
        version=number,
        device=end.device,
        buffers=end.buffers,
        progress=end.progress,
    )
    for _tensors in buckets:
        pass


def _send_tcp(end: End, _: int) -> None:
    """Send over the plain TCP connection, from host memory."""
    buffer = bytes(end.load.bucket_bytes)
    for _bucket in range(end.load.buckets):
        end.connection.sendall(buffer)
        end.progress()


def _receive_tcp(end: End, _: int) -> None:
    buffer = memoryview(bytearray(end.load.bucket_bytes))
    for _bucket in range(end.load.buckets):
        arrived = 0
        while arrived < len(buffer):
            count = end.connection.recv_into(buffer[arrived:])
            if not count:
                raise TransferError("the sender closed the connection")
            arrived += count
        end.progress()


SENDERS: dict[Kind, Callable[[End, int], None]] = {
    "broadcast": _broadcast,
    "publication": _send_publication,
    "tcp": _send_tcp,
}
RECEIVERS: dict[Kind, Callable[[End, int], None]] = {
    "broadcast": _broadcast,
    "publication": _receive_publication,
    "tcp": _receive_tcp,
}


@contextmanager
def _store(host: str, timeout_seconds: float, log: Log) -> Iterator[RendezvousStore]:
    store = RendezvousStore(host, 0, timeout_seconds=timeout_seconds, log=log)
    try:
        yield store
    finally:
        store.server.close()


def _line(connection: socket.socket) -> bytes:
    """Read one line. Errors: OSError, TransferError."""
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(1)
        if not part:
            raise TransferError("the sender closed the connection before it sent its invitation")
        line += part
    return line


@contextmanager
def _formed(
    rendezvous: Rendezvous, device: torch.device, progress: Callable[[], None]
) -> Iterator[WeightGroup]:
    group = form_group(rendezvous, device=device, progress=progress)
    try:
        yield group
    finally:
        group.close()


@contextmanager
def _as_transfer_error(what: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise TransferError(f"{what} timed out") from error
    except OSError as error:
        raise TransferError(f"{what} broke: {error}") from error


def _wait_for_confirmation(end: End) -> None:
    if end.connection.recv(1) != DONE:
        raise TransferError("the receiver closed the connection")
