"""Measures the bandwidth between two pods on the network path of weights: `slipstream probe send-weights`.

The sender prints the command for the other pod, with a ticket. The system chooses free ports, as it does for
gloo and NCCL. So a NetworkPolicy that permits the transfer of weights also permits the probe.
"""

import hmac
import secrets
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import torch

from slipstream.cli.errors import CommandError, UsageError
from slipstream.config import WeightsConfig
from slipstream.telemetry.logs import Log
from slipstream.weights import bandwidth, group, last_deadline, manifest, nccl_log
from slipstream.weights.rendezvous import addresses, server

MIB = 1024 * 1024
WHAT: dict[bandwidth.Kind, str] = {
    "broadcast": "broadcasts alone",
    "publication": "with packing and checksums, as a publication",
    "tcp": "one plain TCP stream",
}
TO_DO_AS_SENDER = (
    "was the printed command started in the other pod, and do NetworkPolicies let that pod reach this one at "
    "every port that the system may choose? --deadline gives more time"
)
TO_DO_AS_RECEIVER = (
    "does the sender still wait, is the ticket its newest one, and do NetworkPolicies let this pod reach the "
    "sender's? Each ticket works once"
)
JOINING_SECONDS = 60.0
PATIENCE_SECONDS = 5.0
EXAMPLE = "gloo://10.0.0.7:41235/0123…"
NONCE_BYTES = 32


class ProbeFailed(CommandError):
    """The bandwidth could not be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The sender's address, its network (`gloo`, or `nccl-` and a version), and a nonce for one receiver."""

    network: str
    host: str
    port: int
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES), repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.network}://{host}:{self.port}/{self.nonce.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a ticket. Errors: ValueError for a text that is no ticket."""
        try:
            parts = urlsplit(text)
            nonce = bytes.fromhex(parts.path.removeprefix("/"))
            if not parts.scheme or not parts.hostname or not parts.port or len(nonce) != NONCE_BYTES:
                raise ValueError
        except ValueError as error:
            raise ValueError(
                f"{text!r} is not a ticket, such as {EXAMPLE}; copy all of the last word of the command that "
                "`slipstream probe send-weights` prints"
            ) from error
        return cls(network=parts.scheme, host=parts.hostname, port=parts.port, nonce=nonce)


def send_weights(config: WeightsConfig, *, mib: int, rounds: int, deadline_seconds: float, cpu: bool) -> None:
    """Wait for the receiver, measure, and print a line for each kind of transfer.

    `mib`: size of a round, which is sent in buckets of `weights.bucket_mib`.
    Errors: ProbeFailed; ValueError and OSError for a `weights.host` on which this process cannot listen.
    """
    device = torch.device("cpu" if cpu or not torch.cuda.is_available() else "cuda:0")
    network, log_file = _network(device), _start_nccl_log(device)
    load = _load(mib, rounds, bucket_mib=config.bucket_mib)
    timeout = config.timeout_seconds
    with (
        _receiver(config.host, network, deadline_seconds) as connection,
        last_deadline.or_exit(timeout, "the measurement with the receiver") as progress,
        _translated(),
        bandwidth.sending(
            connection,
            load,
            host=config.host,
            timeout_seconds=timeout,
            device=device,
            log=Log(pod="probe"),
            progress=progress,
        ) as end,
    ):
        _say_path(end, network, log_file)
        _say_ratio([_say_measured(bandwidth.measure_as_sender(end, kind), load) for kind in bandwidth.KINDS])


def receive_weights(text: str) -> None:
    """Connect to the sender that printed the ticket, and receive until the measurement is complete.

    `text`: the ticket. Errors: ValueError for a text that is no ticket, UsageError for a network that this
    pod does not have, ProbeFailed.
    """
    ticket = Ticket.parse(text)
    device = torch.device("cpu" if ticket.network == "gloo" else "cuda:0")
    _refuse_another_network(ticket, device)
    log_file = _start_nccl_log(device)
    with _sender(ticket) as connection, _translated():
        invited = bandwidth.invitation(connection)
        with (
            last_deadline.or_exit(invited.timeout_seconds, "the measurement with the sender") as progress,
            bandwidth.receiving(connection, invited, device=device, progress=progress) as end,
        ):
            _say_path(end, ticket.network, log_file)
            for kind in bandwidth.KINDS:
                bandwidth.answer_as_receiver(end, kind)
                _say("ok", kind, f"{end.load.rounds} rounds of {_size(end.load)} received, {WHAT[kind]}")


@contextmanager
def _receiver(host: str, network: str, deadline_seconds: float) -> Iterator[socket.socket]:
    """Yield a connection of a receiver that has the printed ticket. Errors: ProbeFailed at the deadline."""
    until = time.monotonic() + deadline_seconds
    with addresses.listen(host, 0) as listening:
        ticket = Ticket(network=network, host=host, port=listening.getsockname()[1])
        _say("wait", "receiver", f"start this in the other pod within {deadline_seconds:g} s:")
        print(f"\n    slipstream probe receive-weights {shlex.quote(str(ticket))}\n", flush=True)
        try:
            while not _holds(connection := _accepted(listening, until), ticket, until):
                connection.close()
        except TimeoutError as error:
            raise ProbeFailed(f"no receiver came within {deadline_seconds:g} s; {TO_DO_AS_SENDER}") from error
    with connection:
        yield connection


def _accepted(listening: socket.socket, until: float) -> socket.socket:
    """Return the next connection. Errors: TimeoutError at `until`."""
    listening.settimeout(_left(until))
    connection, _ = listening.accept()
    return connection


def _holds(connection: socket.socket, ticket: Ticket, until: float) -> bool:
    """Whether the other end shows the nonce of the ticket; ADMITTED tells the other end that it does.

    The other end has PATIENCE_SECONDS for the whole nonce, and no longer than `until`.
    """
    until = min(until, time.monotonic() + PATIENCE_SECONDS)
    try:
        shown = _read(connection, len(ticket.nonce), until)
        if not hmac.compare_digest(shown, ticket.nonce):
            return False
        connection.sendall(server.ADMITTED)
    except OSError:
        return False
    return True


def _read(connection: socket.socket, size: int, until: float) -> bytes:
    """Read `size` bytes, or fewer if the stream ends earlier. Errors: OSError, TimeoutError at `until`."""
    data = b""
    while len(data) < size:
        connection.settimeout(_left(until))
        part = connection.recv(size - len(data))
        if not part:
            break
        data += part
    return data


def _left(until: float) -> float:
    """Return the seconds until a time. Errors: TimeoutError if it has passed."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@contextmanager
def _sender(ticket: Ticket) -> Iterator[socket.socket]:
    """Yield a connection to the sender, after it accepted the ticket. Errors: ProbeFailed."""
    try:
        connection = socket.create_connection((ticket.host, ticket.port), JOINING_SECONDS)
    except OSError as error:
        where = f"{ticket.host}, port {ticket.port}"
        raise ProbeFailed(f"no sender can be reached at {where}: {error}; {TO_DO_AS_RECEIVER}") from error
    with connection:
        try:
            connection.sendall(ticket.nonce)
            answer = connection.recv(len(server.ADMITTED))
        except OSError:
            answer = b""
        if answer != server.ADMITTED:
            raise ProbeFailed(f"the sender refused the ticket; {TO_DO_AS_RECEIVER}")
        yield connection


def _load(mib: int, rounds: int, *, bucket_mib: float) -> bandwidth.Load:
    """Return the buckets of a round: whole buckets, or one smaller bucket for a small round."""
    words = round(min(mib, bucket_mib) * MIB) // manifest.ALIGNMENT_BYTES
    bucket_bytes = max(1, words) * manifest.ALIGNMENT_BYTES
    return bandwidth.Load(bucket_bytes=bucket_bytes, buckets=max(1, mib * MIB // bucket_bytes), rounds=rounds)


def _network(device: torch.device) -> str:
    """Return `gloo`, or `nccl-` and the version of NCCL."""
    return "-".join(part for part in (group.backend_of(device), group.nccl_version(device)) if part)


def _refuse_another_network(ticket: Ticket, device: torch.device) -> None:
    """Errors: UsageError if this pod does not have the network of the sender."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"the sender speaks {ticket.network}, and this pod has no CUDA device; receive in a pod with "
            "a GPU, or start the sender with --cpu"
        )
    if ticket.network != _network(device):
        raise UsageError(
            f"the sender speaks {ticket.network}, and this pod {_network(device)}: two versions form no "
            "group. Learner and rollouts need images with one NCCL (docker/README.md)"
        )


def _start_nccl_log(device: torch.device) -> Path | None:
    return nccl_log.start() if group.backend_of(device) == "nccl" else None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except group.TransferError as error:
        raise ProbeFailed(f"{error}; what does the command in the other pod say, and does it run?") from error
    except torch.cuda.OutOfMemoryError as error:
        raise ProbeFailed(
            "the GPU has no memory left for the probe: measure before the run starts, or measure the pods' "
            "network without the GPUs (--cpu)"
        ) from error


def _say_path(end: bandwidth.End, network: str, log_file: Path | None) -> None:
    own, peer = end.addresses
    _say("ok", "group", f"{network}, from {own} to {peer}")
    if log_file is None:
        _say("ok", "transport", "TCP, through the memory of the hosts: without a GPU there is no other")
        return
    names = nccl_log.transports(log_file.read_text(encoding="utf-8"))
    _say("ok", "transport", f"{', '.join(names)}: {nccl_log.meaning(names)} (NCCL's log: {log_file})")


def _say_measured(measured: bandwidth.Measurement, load: bandwidth.Load) -> bandwidth.Measurement:
    _say(
        "ok",
        measured.kind,
        f"{measured.gigabytes_per_second:.3g} GB/s, {WHAT[measured.kind]}: median of {load.rounds} rounds of "
        f"{_size(load)}, from {measured.slowest:.3g} to {measured.fastest:.3g}",
    )
    return measured


def _say_ratio(results: list[bandwidth.Measurement]) -> None:
    speeds = {result.kind: result.gigabytes_per_second for result in results}
    _say("ok", "ratio", f"a broadcast has {speeds['broadcast'] / speeds['tcp']:.2g} times the speed of TCP")


def _size(load: bandwidth.Load) -> str:
    return f"{load.buckets} × {load.bucket_bytes / MIB:g} MiB"


def _say(verdict: str, what: str, text: str) -> None:
    print(f"{verdict:<4}  {what:<11}  {text}", flush=True)
