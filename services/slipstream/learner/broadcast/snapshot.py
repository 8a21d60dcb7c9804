"""A copy of the policy's weights as they are published, so that training may go on changing its own."""

import torch

from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Ranks


class Snapshot:
    """The weights of one version in the wire dtype, in the memory of rank 0's processor.

    Not in that of its GPU: a model that needs several of them to train does not fit into one.
    """

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        self._policy = policy
        self._ranks = ranks
        self.tensors: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def take(self) -> None:
        """Copy the weights as they are now; every rank must. On rank 0 nobody may be reading `tensors`."""
        on_gpu = self._policy.device.type == "cuda"
        for name, tensor in self._policy.named_tensors():
            if self._ranks.rank:
                continue
            if name not in self.tensors:
                self.tensors[name] = torch.empty(tensor.shape, dtype=self._policy.dtype, pin_memory=on_gpu)
            self.tensors[name].copy_(tensor)
