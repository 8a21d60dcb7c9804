"""A copy of the policy's weights for publication, so that training may continue to change the policy."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.distributed.tensor import DTensor

from slipstream.learner.broadcast.parity_probe import ParityProbe, take_parity_probe
from slipstream.learner.policy.model import Policy
from slipstream.learner.policy.own_tensors import OwnTensors
from slipstream.learner.ranks.ranks import Ranks
from slipstream.weights.changes import ChangeLog
from slipstream.weights.delta import rounds
from slipstream.weights.manifest import Part
from slipstream.weights.threads import in_thread


class Snapshot:
    """The weights of one version in the dtype of the broadcast, in host memory: all of them on rank 0, or
    with `shared` on each rank the parts that it has.

    They are not in GPU memory: a model that trains on several GPUs may not fit into one. With `deltas`,
    `changes` notes which elements changed from copy to copy. `probe` is of the same weights, or None.
    `copies` counts the copies that have begun. background: whether a copy that was begun gives way to the
    other threads of the process, which train meanwhile.
    """

    def __init__(
        self,
        policy: Policy,
        ranks: Ranks,
        *,
        deltas: bool = True,
        parity_tokens: int = 0,
        shared: bool = False,
        background: bool = False,
    ) -> None:
        self._policy = policy
        self._background = background
        self._ranks = ranks
        self.rank, self.device, self.dtype = ranks.rank, policy.device, policy.dtype
        self._own = OwnTensors(policy, ranks.rank) if shared else None
        self.shared = shared
        self.parts: dict[str, Part] = {}
        """The parts of tensors among `tensors`."""
        self.copies = 0
        self._parity_tokens = parity_tokens
        self.probe: ParityProbe | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        self._copying: Future[None] | None = None
        self._held = 0.0
        on_gpu = policy.device.type == "cuda"
        self._copy_stream = torch.cuda.Stream(policy.device) if on_gpu else None
        gathers = self._own.gathers if self._own else ranks.size > 1
        self._copies_first = gathers or _makes_tensors(policy.model, self._published())
        self.changes = ChangeLog(self.tensors) if deltas else None

    def take(self, *, probe: bool = True) -> None:
        """Copy the current weights; all ranks must call. Nothing may be reading `tensors`.

        probe: whether to compute the parity probe, if there are `parity_tokens`.
        """
        self._begin(probe=probe, background=False)
        self.wait()

    def begin(self, *, probe: bool = True) -> None:
        """Begin to copy the current weights, as in `take`, but with `background` on threads that give way.

        The weights must not change before `finished` or `wait` has returned, and `tensors` has them after
        `wait` only. A rank that has what it copies does so in a thread, beside its next forward and backward
        passes. All is copied when this returns if rank 0 gathers the parts of other ranks, or if tensors are
        made for the publication (merged adapters, single experts): these would take memory beside those
        passes.
        """
        self._begin(probe=probe, background=self._background)

    def _begin(self, *, probe: bool, background: bool) -> None:
        self.finished()
        probed = probe and self._parity_tokens > 0
        self.probe = take_parity_probe(self._policy, self._parity_tokens) if probed else None
        if self._copies_first:
            self._copying = None
            self._copy(nullcontext())
        else:
            copy = partial(self._copy, self._own_stream())
            self._copying = in_thread(copy, "copy of the weights", background=background)
        self.copies += 1

    @property
    def copying(self) -> bool:
        """Whether the weights are being copied now."""
        return self._copying is not None and not self._copying.done()

    def finished(self) -> None:
        """Wait until the weights that are being copied may change, also if copying them fails."""
        if self._copying is not None:
            began = time.monotonic()
            wait([self._copying])
            self._held += time.monotonic() - began

    def held_seconds(self) -> float:
        """Return for how long `finished` has waited since the last call of this method."""
        held, self._held = self._held, 0.0
        return held

    def wait(self) -> None:
        """Wait until the weights are copied. Errors: those of copying them."""
        if self._copying is not None:
            self._copying.result()

    @torch.no_grad()
    def _copy(self, stream: AbstractContextManager[object]) -> None:
        try:
            with stream:
                for name, tensor in self._published():
                    if self._ranks.rank and not self.shared:
                        continue
                    first = name not in self.tensors
                    if first:
                        pinned = self._copy_stream is not None
                        self.tensors[name] = torch.empty(
                            tensor.shape, dtype=self._policy.dtype, pin_memory=pinned
                        )
                    if first or self.changes is None:
                        self.tensors[name].copy_(tensor)
                    else:
                        new = _comparable(tensor.detach(), self._policy.dtype)
                        self.changes.update(name, new)
        finally:  # comparisons that have begun read the weights, which may change afterwards
            if self.changes is not None:
                self.changes.settle()

    def _published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what this rank publishes; without `shared`, every rank yields what rank 0 does."""
        if self._own is None:
            yield from self._policy.named_tensors()
            return
        for own in self._own:
            if own.part is not None:
                self.parts[own.name] = own.part
            yield own.name, own.tensor

    def _own_stream(self) -> AbstractContextManager[object]:
        """Return a context whose copies from a GPU wait for the work that the GPU has got until now, and for
        none that it gets later."""
        if self._copy_stream is None:
            return nullcontext()
        self._copy_stream.wait_stream(torch.cuda.current_stream(self._policy.device))
        return torch.cuda.stream(self._copy_stream)


def _makes_tensors(model: torch.nn.Module, published: Iterable[tuple[str, torch.Tensor]]) -> bool:
    """Return whether some published tensors are not views of parameters."""
    parameters = {_memory(parameter) for parameter in model.parameters()}
    return any(_memory(tensor) not in parameters for _, tensor in published)


def _comparable(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of a tensor for ChangeLog.update, in host memory."""
    rounded_later = tensor.device.type == "cpu" and rounds(tensor.dtype, dtype)
    return (tensor if rounded_later else tensor.to("cpu", dtype)).contiguous()


def _memory(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()
