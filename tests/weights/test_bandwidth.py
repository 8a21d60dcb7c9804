"""The measurement of bandwidth: its rounds, their end, and the transports in NCCL's log."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from slipstream.telemetry.logs import Log
from slipstream.weights.bandwidth import (
    DONE,
    End,
    Kind,
    Load,
    Measurement,
    answer_as_receiver,
    invitation,
    measure_as_sender,
    receiving,
    sending,
)
from slipstream.weights.group import TransferError
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.nccl_log import meaning, transports

CPU = torch.device("cpu")
SECONDS = 20.0
LOAD = Load(bucket_bytes=4096, buckets=3, rounds=2)
LATE = 0.3

Receiver = Callable[[End], None]


def measured(kind: Kind, receiver: Receiver) -> Measurement:
    """Return the sender's measurement with this receiver in a thread."""
    near, far = socket.socketpair()

    def receive() -> None:
        with far, receiving(far, invitation(far), device=CPU, progress=no_progress) as end:
            assert end.load == LOAD
            receiver(end)

    with in_background(receive), near, sending_end(near) as end:
        return measure_as_sender(end, kind)


def sending_end(connection: socket.socket) -> AbstractContextManager[End]:
    return sending(
        connection,
        LOAD,
        host="127.0.0.1",
        timeout_seconds=SECONDS,
        device=CPU,
        log=Log(pod="test"),
        progress=no_progress,
    )


@contextmanager
def in_background(call: Callable[[], None]) -> Iterator[None]:
    other = threading.Thread(target=call)
    other.start()
    try:
        yield
    finally:
        other.join()


def read(end: End, count: int) -> None:
    """Read this number of bytes from the TCP connection."""
    while count:
        count -= len(end.connection.recv(count))


@pytest.mark.parametrize("kind", ["broadcast", "publication", "tcp"])
def test_every_kind_of_round_has_the_same_bytes_and_the_first_is_not_counted(kind: Kind) -> None:
    measurement = measured(kind, lambda end: answer_as_receiver(end, kind))
    assert measurement.nbytes == 3 * 4096
    assert len(measurement.seconds) == 2


def test_a_round_ends_when_the_receiver_has_confirmed_it() -> None:
    def confirm_late(end: End) -> None:
        for _ in range(LOAD.rounds + 1):
            read(end, LOAD.nbytes)
            time.sleep(LATE)
            end.connection.sendall(DONE)

    measurement = measured("tcp", confirm_late)
    assert all(LATE <= seconds < SECONDS for seconds in measurement.seconds)


def test_a_receiver_that_closes_its_connection_is_an_error_of_the_sender() -> None:
    with pytest.raises(TransferError, match=r"the receiver closed the connection|a round of kind tcp broke"):
        measured("tcp", lambda end: read(end, LOAD.nbytes))


def test_a_receiver_that_leaves_before_the_group_is_formed_is_an_error_of_the_sender() -> None:
    near, far = socket.socketpair()
    far.close()
    with pytest.raises(TransferError, match="the forming of the group broke"), near, sending_end(near):
        pass


def test_a_sender_that_leaves_before_it_invites_is_an_error_of_the_receiver() -> None:
    near, far = socket.socketpair()
    near.close()
    with far, pytest.raises(TransferError, match="closed the connection before it sent its invitation"):
        invitation(far)


def test_the_bandwidth_is_that_of_the_median_round() -> None:
    measurement = Measurement(kind="tcp", nbytes=3_000_000_000, seconds=(1.0, 3.0, 2.0))
    assert (measurement.slowest, measurement.gigabytes_per_second, measurement.fastest) == (1.0, 1.5, 3.0)


def test_a_publication_has_as_many_buckets_as_the_load() -> None:
    assert LOAD.manifest().bucket_bytes == (4096, 4096, 4096)


LINE = "host-1:120:121 [0] NCCL INFO"


@pytest.mark.parametrize(
    ("lines", "names", "says"),
    [
        (
            [
                "Using network IB",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA",
                "Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
                "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
            ],
            ["NET/IB/0/GDRDMA", "NET/IB/1/GDRDMA"],
            "RDMA between the memories of the GPUs",
        ),
        (["Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"], ["NET/Socket/0"], "TCP sockets"),
        (
            ["Channel 07/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/1/GDRDMA"],
            ["NET/AWS Libfabric/1/GDRDMA"],
            "RDMA between",
        ),
        (["Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2"], ["NET/IB/2"], "through the memory of the host"),
        (["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"], ["P2P/CUMEM"], "both processes are on one machine"),
        (["NET/IB : No device measurement."], [], "names no channel"),
    ],
)
def test_the_log_of_nccl_names_the_transport(lines: list[str], names: list[str], says: str) -> None:
    transport_names = transports("\n".join(f"{LINE} {line}" for line in lines))
    assert transport_names == names
    assert says in meaning(transport_names)
