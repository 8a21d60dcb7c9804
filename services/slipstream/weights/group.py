"""The process group of one membership epoch: a rank of the learner is rank 0, engine processes are the rest.

With several senders there is a group of torch for each of them, of which the engine processes have all.

It is formed through the rendezvous, without torch's global process group, so that it can be torn down and
rebuilt during a run. gloo and NCCL share the code; only the constructor of the process group differs.
"""

import atexit
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
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
CONNECTING_TIMEOUTS = 5  # gloo waits for a connection for this many of its timeouts
GLOO_AT_ONCE = 2
"""Broadcasts that gloo runs at once, the later one during the earlier one: gloo's timeout is for both."""
ABORT_SECONDS = 5.0
CLOSED_POLL = timedelta(milliseconds=50)
NCCL_POLL_SECONDS = 0.001
ENDED_POLL_SECONDS = 0.1
BLOCKING_WAIT = {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""torch reads these when it makes a group: `wait` raises at its timeout, and torch's watchdog is off."""


class TransferError(RuntimeError):
    """A group could not be formed, or a broadcast failed, timed out, or arrived damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """How one member joins the group of one epoch.

    `store_host` and `store_port` are the address of the learner's rendezvous server. `rank` and `world_size`
    count one sender. `senders`: ranks of the learner that send. `sender`: which of them this process is, if
    its rank is 0.
    """

    epoch: int
    rank: int
    world_size: int
    senders: int = 1
    sender: int = 0
    store_host: str
    store_port: int
    timeout_seconds: float
    nonce: bytes = field(repr=False)

    @property
    def members(self) -> int:
        """Processes that join, all senders included."""
        return self.world_size - 1 + self.senders

    @property
    def own_senders(self) -> Sequence[int]:
        """The senders with which this process is in a group, one group each."""
        return range(self.senders) if self.rank else (self.sender,)


class RendezvousStore:
    """torch's store through which members find each other; the learner has one for the whole run.

    The store listens on the loopback only. Members connect through the rendezvous server, which listens on
    `host` only. The learner does so as well, so that the end of an epoch also ends its own waits.
    Errors: ValueError for a wildcard `host`, OSError for an address of another machine.
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
    """A formed group. Invariant: no single wait lasts longer than the timeout of the rendezvous."""

    def __init__(self, timeout_seconds: float) -> None:
        self._groups: dict[int, Any] = {}
        """Groups of torch, by the sender that is rank 0 in it."""
        self._closed = False
        self._timeout = timedelta(seconds=timeout_seconds)
        self._lock = threading.Lock()
        self._works: set[Any] = set()
        """Broadcasts that gloo has not ended."""

    def add(self, sender: int, group: Any) -> None:
        """Take in the group of torch in which a sender is rank 0."""
        self._groups[sender] = group

    def broadcast(self, tensor: torch.Tensor, *, sender: int = 0) -> None:
        """Broadcast a tensor, and wait for it. See `begin`. Errors: TransferError."""
        self.begin(tensor, sender=sender)()

    def begin(self, tensor: torch.Tensor, *, sender: int = 0) -> Callable[[], None]:
        """Begin to send (the sender, rank 0 of its group) or to receive (the others) a tensor in place.

        All members begin the same broadcasts in the same order, and may begin several before they wait for
        the first. The returned function waits. Errors of both: TransferError, also at once when another
        thread calls `close`. The tensor must not be used again after an error, because gloo may go on reading
        and writing it.
        """
        options = dist.BroadcastOptions()
        options.rootRank = 0
        options.timeout = GLOO_AT_ONCE * self._timeout
        with self._named(tensor):
            if tensor.is_cuda:  # not under the lock: NCCL may block here until `close` aborts it
                work = self._open_group(sender).broadcast([tensor], options)
            else:
                with self._lock:
                    work = self._open_group(sender).broadcast([tensor], options)
                    self._works.add(work)
        return partial(self._wait, work, tensor)

    def _open_group(self, sender: int) -> Any:
        group = self._groups.get(sender)
        if group is None:
            raise TransferError("the group was closed" if self._closed else f"there is no sender {sender}")
        return group

    def _wait(self, work: Any, tensor: torch.Tensor) -> None:
        """Wait for a broadcast or for `close`, which does not end a wait of gloo's own.

        The deadline counts from here, and not from the begin of a broadcast that waited for earlier ones.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        with self._named(tensor):
            while not work.is_completed() and time.monotonic() < deadline:
                if self._closed:
                    raise TransferError("the group was closed")
                if tensor.is_cuda:
                    time.sleep(NCCL_POLL_SECONDS)  # a wait with a timeout would abort NCCL
                else:
                    with suppress(RuntimeError):
                        work.wait(CLOSED_POLL)
            if not work.is_completed():
                raise TransferError(f"it did not end in {self._timeout.total_seconds():g} s")
            self._works.discard(work)
            work.wait(self._timeout)  # raises what went wrong
        if tensor.is_cuda:
            torch.cuda.current_stream(tensor.device).synchronize()

    @contextmanager
    def _named(self, tensor: torch.Tensor) -> Iterator[None]:
        """Turn an error of torch into a TransferError that names the broadcast."""
        try:
            yield
        except RuntimeError as error:
            raise TransferError(f"broadcast of {tensor.nbytes} bytes failed: {_first_line(error)}") from error

    def close(self) -> None:
        """Leave the group, without blocking. A broadcast that waits in it fails, here and at peers."""
        with self._lock:
            self._closed = True
            groups, works = list(self._groups.values()), tuple(self._works)
            self._groups.clear()
        if groups:
            _abort(groups, works)  # has the last references: gloo closes its connections with them


def backend_of(device: torch.device) -> Backend:
    """Return the backend for a device."""
    return "nccl" if device.type == "cuda" else "gloo"


def nccl_version(device: torch.device) -> str:
    """Return the version of the loaded NCCL, such as "2.30.7"; empty for a device that uses gloo.

    An image may contain another NCCL than torch was built with, so torch's own version is not used.
    """
    if backend_of(device) == "gloo":
        return ""
    parts = dist.ProcessGroupNCCL.get_runtime_nccl_version()  # type: ignore[call-arg]  # a static method; the stub says otherwise
    return ".".join(str(part) for part in parts)


def form_group(
    rendezvous: Rendezvous, *, device: torch.device, progress: Callable[[], None] = no_progress
) -> WeightGroup:
    """Form the group of an epoch; return once all members are connected.

    Each wait has the timeout of the rendezvous, and `progress` is called after each wait. When the learner
    ends the epoch, the group closes at once.
    Errors: TransferError; at once if the learner ends the epoch before all members have formed the group.
    """
    try:
        return _form(rendezvous, device, progress)
    except (RuntimeError, OSError) as error:
        raise TransferError(
            f"epoch {rendezvous.epoch}: rank {rendezvous.rank} of {rendezvous.world_size} could not form the "
            f"group within {rendezvous.timeout_seconds:g} s: {_first_line(error)}"
        ) from error


def _form(rendezvous: Rendezvous, device: torch.device, progress: Callable[[], None]) -> WeightGroup:
    """Form the group. Errors: OSError, RuntimeError."""
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
    barrier(store, "come", rendezvous.members)
    progress()
    group = WeightGroup(rendezvous.timeout_seconds)
    try:
        store.set_timeout(rendezvous.senders * timeout)  # the groups are formed one after the other
        for sender in rendezvous.own_senders:
            theirs = PrefixStore(f"sender/{sender}", store)
            if rendezvous.senders > 1:
                barrier(theirs, "come", rendezvous.world_size)
            group.add(sender, _construct(theirs, rendezvous, tunnel, device))
            progress()
        barrier(store, "formed", rendezvous.members)
    except (RuntimeError, OSError):
        group.close()
        raise
    tunnel.ended.add_done_callback(partial(_close, weakref.ref(group)))
    return group


def _close(reference: "weakref.ref[WeightGroup]", _: Future[None]) -> None:
    """Close a group whose epoch has ended, so that a broadcast that waits for another member ends.

    Not while the process exits: a thread that aborts a group at that moment would abort the process.
    """
    group = reference()
    with _exit_lock:
        if group is not None and not _exit_began:
            group.close()


def _construct(store: Store, rendezvous: Rendezvous, tunnel: Tunnel, device: torch.device) -> Any:
    """Return torch's group of one sender. Errors: OSError, RuntimeError."""
    if backend_of(device) == "nccl":
        return _nccl(store, rendezvous, tunnel, device)
    timeout = timedelta(seconds=rendezvous.timeout_seconds)
    return construct_while_open(tunnel, partial(_gloo, store, rendezvous, timeout), timeout)


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
    """Return a group that has connected its members by one small all-reduce.

    NCCL connects in the first collective. With `blocking` 0 it polls instead of blocking the thread in the
    driver, so an abort can end it. Errors: RuntimeError.
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
        _abort([group])
        raise
    return group


def _connect(group: Any, timeout: timedelta, device: torch.device) -> None:
    """Connect all members. Errors: RuntimeError."""
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


_aborting: set[threading.Thread] = set()
_exit_began: list[float] = []
"""When the process began to exit; empty before."""
_exit_lock = threading.Lock()


def _abort(groups: list[Any], works: Sequence[Any] = ()) -> None:
    """Abort groups of torch in a thread of its own, because NCCL may block; this empties the list.

    works: broadcasts that gloo has not ended. Its destructor would wait for them and hold the interpreter's
    lock meanwhile, so all threads of the process would stand still.
    """

    def abort() -> None:
        _abort_each(groups)
        _await_end(works)
        groups.clear()  # so that gloo's destructor, which joins its threads, runs in this thread
        _aborting.discard(threading.current_thread())

    thread = threading.Thread(target=abort, name="abort of a group", daemon=True)
    _aborting.add(thread)
    thread.start()


def _await_end(works: Sequence[Any]) -> None:
    """Wait until gloo has ended broadcasts; for ever if the process exits before."""
    for work in works:
        while not work.is_completed():
            time.sleep(ENDED_POLL_SECONDS)
            if _exit_began and time.monotonic() > _exit_began[0] + ABORT_SECONDS / 2:
                threading.Event().wait()  # inside torch, this thread would abort the process


def _abort_each(groups: Sequence[Any]) -> None:
    for group in groups:
        with suppress(RuntimeError):
            group.abort()


@atexit.register
def _join_aborting() -> None:
    """Wait for aborting threads: a thread inside torch at interpreter exit aborts the process."""
    with _exit_lock:
        _exit_began.append(time.monotonic())  # no further thread begins
    for thread in list(_aborting):
        thread.join(ABORT_SECONDS)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
