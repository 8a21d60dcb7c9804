"""The ranks of the learner: one process or several, which execute the same calls in the same order.

Numbers that a rank computes from its own rows are summed or gathered here, so that all ranks continue with
the same numbers. Our own collectives are small, and use gloo; those of FSDP are torch's, over NCCL on GPUs.

Shape suffix: T tokens of one rank, as many as it has.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from slipstream.rpc.errors import SlipstreamError

POLL_SECONDS: Final = 2.0
BEAT: Final = "slipstream/beat"
TEXT_BYTES: Final = 512
FORGET_AFTER: Final = 16
"""Commands after which a command's key is deleted: all ranks have read it by then."""


class RankLost(SlipstreamError):
    """Another rank has died, or did not come to a collective in time."""


class Ranks(Protocol):
    """The collectives of training. All ranks call them in the same order."""

    rank: int
    size: int

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks, on the tensor's device."""

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the maximum over ranks, element by element."""

    def gather(self, tensor_T: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated in the order of ranks."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on any rank."""

    def first_text(self, text: str) -> str:
        """Return the text of the first rank that has one, shortened. It may run parallel to other methods."""


class Alone:
    """The only rank."""

    rank: int = 0
    size: int = 1

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return tensor

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return tensor

    def gather(self, tensor_T: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return tensor_T

    def any(self, flag: bool) -> bool:
        """See Ranks."""
        return flag

    def first_text(self, text: str) -> str:
        """See Ranks."""
        return text

    def close(self) -> None:
        """Do nothing: there is no process group to leave."""


class Heartbeat:
    """Tells the other ranks that rank 0 lives while it waits for data."""

    def __init__(self, store: Any, *, timeout_seconds: float) -> None:
        self._store = store
        self._timeout = timeout_seconds
        self._beats = 0
        self._heard = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat. Called on rank 0, about every second."""
        self._beats += 1
        self._store.set(BEAT, str(self._beats))

    def heard(self) -> bool:
        """Return whether a heartbeat came within the timeout. Called on the other ranks."""
        beats = int(self._store.get(BEAT)) if self._store.check([BEAT]) else 0
        if beats != self._beats:
            self._beats, self._heard = beats, time.monotonic()
        return time.monotonic() - self._heard <= self._timeout


class TorchRanks:
    """The processes that torchrun started. Errors of every method but `close`: RankLost.

    Invariant: a collective ends within `timeout_seconds`, or every rank that takes part in it fails.
    """

    def __init__(self, device: torch.device, *, timeout_seconds: float) -> None:
        timeout = timedelta(seconds=timeout_seconds)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timeout)
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self.mesh: DeviceMesh = init_device_mesh(device.type, (self.size,))
        self._background = dist.new_group(backend="gloo", timeout=timeout)
        self._store = dist.distributed_c10d._get_default_store()  # the store of init_process_group
        self._commands = 0
        self.heartbeat = Heartbeat(self._store, timeout_seconds=timeout_seconds)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def gather(self, tensor_T: torch.Tensor) -> torch.Tensor:
        """See Ranks."""
        own = torch.zeros(self.size, dtype=torch.int64)
        own[self.rank] = tensor_T.shape[0]
        lengths = self.sum(own).tolist()
        padded = torch.zeros(max(lengths), dtype=tensor_T.dtype)
        padded[: tensor_T.shape[0]] = tensor_T.detach().cpu()
        parts = [torch.empty_like(padded) for _ in lengths]
        with named_loss(self):
            dist.all_gather(parts, padded)
        gathered = torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
        return gathered.to(tensor_T.device)

    def any(self, flag: bool) -> bool:
        """See Ranks."""
        return bool(self.max(torch.tensor(int(flag))))

    def first_text(self, text: str) -> str:
        """See Ranks."""
        own = torch.zeros(TEXT_BYTES, dtype=torch.uint8)
        if data := text.encode()[:TEXT_BYTES]:
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = [torch.empty_like(own) for _ in range(self.size)]
        with named_loss(self):
            dist.all_gather(parts, own, group=self._background)
        texts = [part.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for part in parts]
        return next((text for text in texts if text), "")

    def tell(self, messages: Sequence[bytes]) -> None:
        """Send the other ranks their next command, as one message or several. Called on rank 0."""
        self._store.set(self._key(self._commands), "")
        lengths = [len(message) for message in messages]
        with named_loss(self):
            dist.broadcast(torch.tensor([len(lengths)]), src=0)
            dist.broadcast(torch.tensor(lengths), src=0)
            dist.broadcast(torch.frombuffer(bytearray(b"".join(messages)), dtype=torch.uint8), src=0)
        self._store.delete_key(self._key(self._commands - FORGET_AFTER))
        self._commands += 1

    def listen(self) -> list[bytes] | None:
        """Return rank 0's next command; None after POLL_SECONDS. Called on the other ranks."""
        try:
            self._store.wait([self._key(self._commands)], timedelta(seconds=POLL_SECONDS))
        except dist.DistStoreError:
            return None
        except dist.DistNetworkError as error:
            raise RankLost(f"rank {self.rank}: the store of the ranks is gone: {error}") from error
        count = torch.zeros(1, dtype=torch.int64)
        with named_loss(self):
            dist.broadcast(count, src=0)
            lengths = torch.zeros(int(count), dtype=torch.int64)
            dist.broadcast(lengths, src=0)
            everything = torch.empty(int(lengths.sum()), dtype=torch.uint8)
            dist.broadcast(everything, src=0)
        self._commands += 1
        return [part.numpy().tobytes() for part in everything.split(lengths.tolist())]

    def store(self) -> Any:
        """Return a connection of its own to the store of the ranks, for another thread."""
        return self._store.clone()  # type: ignore[attr-defined]  # the stub lacks it

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()

    def _reduce(self, tensor: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        total = tensor.detach().to("cpu", copy=True)
        with named_loss(self):
            dist.all_reduce(total, operation)
        return total.to(tensor.device)

    def _key(self, number: int) -> str:
        return f"slipstream/command/{number}"


@contextmanager
def named_loss(ranks: Ranks) -> Iterator[None]:
    """Turn torch's error of a dead or late rank in a collective into RankLost."""
    try:
        yield
    except RuntimeError as error:
        if ranks.size == 1:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RankLost(f"rank {ranks.rank}: another rank died or came too late: {reason}") from error


def started_by_torchrun() -> bool:
    """Return whether this process is one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def own_rank() -> int:
    """Return the rank that torchrun gave to this process; 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Return the rank of this process on its machine, which is the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))
