"""The process group of one membership epoch: the learner is rank 0, engine processes are the rest.

Formed from a store that the learner serves behind a gate, without torch's global group, so that it can be
torn down and rebuilt in the middle of a run. gloo and NCCL take the same path; only the constructor differs.
"""

import atexit
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from slipstream.telemetry.logs import Log
from slipstream.weights.last_deadline import no_progress
from slipstream.weights.rendezvous.addresses import own_address
from slipstream.weights.rendezvous.barrier import barrier, construct_while_open
from slipstream.weights.rendezvous.client import Tunnel, open_tunnel
from slipstream.weights.rendezvous.server import STORE_HOST, RendezvousServer

Backend = Literal["gloo", "nccl"]
CONNECTING_TIMEOUTS = 5  # how many of its timeouts gloo waits for a peer to connect
LEAVING_SECONDS = 5.0
BLOCKING_WAIT = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""Read by torch when it makes a group: `wait` raises at its timeout, and no watchdog ends the process."""


class TransferError(RuntimeError):
    """A group could not be formed, or a broadcast failed, was late, or arrived damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where and as what to join the group of one epoch.

    The store's host and port are those of the learner's gate, to which every member shows its nonce.
    """

    epoch: int
    rank: int
    world_size: int
    store_host: str
    store_port: int
    timeout_seconds: float
    nonce: bytes = field(repr=False)


class RendezvousStore:
    """The store through which members find each other; the learner keeps one for the whole run.

    It listens on the loopback only. Members come through the gate, which listens on `host` and nothing else;
    the learner too, so that the end of an epoch ends its own waits as well.
    Errors: ValueError when `host` stands for all addresses, OSError when it is not this machine's.
    """

    def __init__(self, host: str, port: int, *, timeout_seconds: float, log: Log) -> None:
        listening = socket.create_server((STORE_HOST, 0))
        store_port: int = listening.getsockname()[1]
        self.server = RendezvousServer(host=host, port=port, store_port=store_port, log=log)
        self.host = host
        self.port = self.server.port
        self.store = TCPStore(
            STORE_HOST,
            store_port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_seconds),
            master_listen_fd=listening.detach(),
        )


class WeightGroup:
    """A formed group. One of its waits never lasts longer than the rendezvous' timeout."""

    def __init__(self, group: Any, timeout_seconds: float) -> None:
        self._group = group
        self._timeout = timedelta(seconds=timeout_seconds)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send (rank 0) or receive (the others) a tensor in place. Errors: TransferError."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = self._timeout
        if self._group is None:
            raise TransferError("the group was closed")
        try:
            self._group.broadcast([tensor], options).wait(self._timeout)
        except RuntimeError as error:
            raise TransferError(f"broadcast of {tensor.nbytes} bytes failed: {_first_line(error)}") from error
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()

    def close(self) -> None:
        """Leave the group; peers that still wait in it get an error. Returns at once."""
        group, self._group = self._group, None  # gloo lets its peers go when the last reference is gone
        if group is not None:
            _leave(group)


def backend_of(device: torch.device) -> Backend:
    """The backend that a device speaks."""
    return "nccl" if device.type == "cuda" else "gloo"


def nccl_version(device: torch.device) -> str:
    """Of the NCCL that this process has loaded, such as "2.30.7"; empty where the device speaks gloo.

    Not the one that torch was built with: an image may bring another.
    """
    if backend_of(device) == "gloo":
        return ""
    parts = dist.ProcessGroupNCCL.get_runtime_nccl_version()  # type: ignore[call-arg]  # static, but for its stub
    return ".".join(str(part) for part in parts)


def form_group(
    rendezvous: Rendezvous, *, device: torch.device, progress: Callable[[], None] = no_progress
) -> WeightGroup:
    """Form the group of an epoch with all its members, each wait within the rendezvous' timeout.

    All members are connected when it returns. `progress` is called after each wait.
    Errors: TransferError, at once when the learner ends the epoch before all members have formed it.
    """
    try:
        return _form(rendezvous, device, progress)
    except (RuntimeError, OSError) as error:
        raise TransferError(
            f"epoch {rendezvous.epoch}: rank {rendezvous.rank} of {rendezvous.world_size} could not form the "
            f"group within {rendezvous.timeout_seconds:g} s: {_first_line(error)}"
        ) from error


def _form(rendezvous: Rendezvous, device: torch.device, progress: Callable[[], None]) -> WeightGroup:
    """Errors: OSError, RuntimeError."""
    timeout = timedelta(seconds=rendezvous.timeout_seconds)
    tunnel = open_tunnel(
        host=rendezvous.store_host,
        port=rendezvous.store_port,
        nonce=rendezvous.nonce,
        timeout_seconds=rendezvous.timeout_seconds,
    )
    progress()
    base = TCPStore(STORE_HOST, tunnel.port, is_master=False, timeout=timeout)
    store = PrefixStore(f"epoch/{rendezvous.epoch}", base)
    store.set_timeout(timeout)
    progress()
    barrier(store, "come", rendezvous.world_size)
    progress()
    if backend_of(device) == "nccl":
        constructed = _nccl(store, rendezvous, tunnel, device)
    else:
        constructed = construct_while_open(tunnel, partial(_gloo, store, rendezvous, timeout), timeout)
    progress()
    group = WeightGroup(constructed, rendezvous.timeout_seconds)
    try:
        barrier(store, "formed", rendezvous.world_size)
    except RuntimeError:
        group.close()
        raise
    return group


def _gloo(store: Store, rendezvous: Rendezvous, timeout: timedelta) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout / CONNECTING_TIMEOUTS
    options._devices = [
        dist.ProcessGroupGloo.create_device(
            hostname=own_address(rendezvous.store_host, rendezvous.store_port)
        )
    ]
    return dist.ProcessGroupGloo(store, rendezvous.rank, rendezvous.world_size, options)


def _nccl(store: Store, rendezvous: Rendezvous, tunnel: Tunnel, device: torch.device) -> Any:
    """A group whose members are connected: each takes part in one small all-reduce.

    NCCL connects in the first collective. With `blocking` 0 it does so without holding the thread in the
    driver, so that an abort ends it. Errors: RuntimeError.
    """
    timeout = timedelta(seconds=rendezvous.timeout_seconds)
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.config.blocking = 0
    with _environment(BLOCKING_WAIT):
        group: Any = dist.ProcessGroupNCCL(store, rendezvous.rank, rendezvous.world_size, options)
    try:
        construct_while_open(tunnel, partial(_connect, group, timeout, device), timeout, may_hang=True)
    except (RuntimeError, OSError):
        _leave(group)
        raise
    return group


def _connect(group: Any, timeout: timedelta, device: torch.device) -> None:
    """Errors: RuntimeError."""
    token = torch.ones(1, device=device)
    group.allreduce([token]).wait(timeout)
    torch.cuda.current_stream(device).synchronize()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_leaving: set[threading.Thread] = set()


def _leave(group: Any) -> None:
    """Abort a group in a thread of its own: NCCL may wait for what will not come."""

    def abort() -> None:
        nonlocal group
        with suppress(RuntimeError):
            group.abort()
        group = None  # gloo's destructor waits for its own threads, in torch
        _leaving.discard(threading.current_thread())

    thread = threading.Thread(target=abort, name="leaving a group", daemon=True)
    _leaving.add(thread)
    thread.start()


@atexit.register
def _left() -> None:
    """A thread that is in torch when the interpreter ends would abort the process."""
    for thread in list(_leaving):
        thread.join(LEAVING_SECONDS)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
