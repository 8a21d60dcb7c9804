"""A copy of the policy's weights for publication, so that training may continue to change the policy."""

import torch

from slipstream.learner.policy.model import Policy
from slipstream.learner.ranks.ranks import Ranks


class Snapshot:
    """The weights of one version in the dtype of the broadcast, in the host memory of rank 0.

    They are not in GPU memory: a model that trains on several GPUs may not fit into one.
    """

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        self._policy = policy
        self._ranks = ranks
        self.tensors: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def take(self) -> None:
        """Copy the current weights; all ranks must call. On rank 0, nothing may be reading `tensors`."""
        on_gpu = self._policy.device.type == "cuda"
        for name, tensor in self._policy.named_tensors():
            if self._ranks.rank:
                continue
            if name not in self.tensors:
                self.tensors[name] = torch.empty(tensor.shape, dtype=self._policy.dtype, pin_memory=on_gpu)
            self.tensors[name].copy_(tensor)
