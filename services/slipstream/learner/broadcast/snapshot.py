"""A copy of the policy's weights for publication, so that training may continue to change the policy."""

import torch

from slipstream.learner.broadcast.parity_probe import ParityProbe, take_parity_probe
from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Ranks
from slipstream.weights.changes import ChangeLog


class Snapshot:
    """The weights of one version in the dtype of the broadcast, in the host memory of rank 0.

    They are not in GPU memory: a model that trains on several GPUs may not fit into one. With `deltas`,
    `changes` notes which elements changed from copy to copy. `probe` is of the same weights, or None.
    """

    def __init__(self, policy: Policy, ranks: Ranks, *, deltas: bool = True, parity_tokens: int = 0) -> None:
        self._policy = policy
        self._ranks = ranks
        self._parity_tokens = parity_tokens
        self.probe: ParityProbe | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        self.changes = ChangeLog(self.tensors) if deltas else None

    @torch.no_grad()
    def take(self, *, probe: bool = True) -> None:
        """Copy the current weights; all ranks must call. On rank 0, nothing may be reading `tensors`.

        probe: whether to compute the parity probe, if there are `parity_tokens`.
        """
        on_gpu = self._policy.device.type == "cuda"
        for name, tensor in self._policy.named_tensors():
            if self._ranks.rank:
                continue
            first = name not in self.tensors
            if first:
                self.tensors[name] = torch.empty(tensor.shape, dtype=self._policy.dtype, pin_memory=on_gpu)
            if first or self.changes is None:
                self.tensors[name].copy_(tensor)
            else:
                self.changes.update(name, tensor.detach().to("cpu", self._policy.dtype).contiguous())
        if self.changes is not None:
            self.changes.settle()
        probed = probe and self._parity_tokens > 0
        self.probe = take_parity_probe(self._policy, self._parity_tokens) if probed else None
