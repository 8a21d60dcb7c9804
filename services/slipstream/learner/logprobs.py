"""Logprobs of chosen tokens, and entropies, from hidden states, a chunk of positions at a time.

Only [chunk × vocabulary] logits exist at once, forward and backward: each chunk is recomputed in its
backward pass instead of being kept.

Shape suffixes: T positions, H hidden size, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from slipstream.learner.routing import Routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """What the head says at each position, float32, in nats."""

    logprobs_T: torch.Tensor
    """Of the target token."""
    entropy_T: torch.Tensor
    """Of the whole distribution; a constant unless its gradient was asked for."""
    routed: Routed | None = None
    """Experts and their router's logprobs, where the forward pass was asked to write them down."""


def selected_logprobs(
    hidden_TH: torch.Tensor,
    head_VH: torch.Tensor,
    targets_T: torch.Tensor,
    *,
    bias_V: torch.Tensor | None = None,
    temperature: float = 1.0,
    chunk: int = 1024,
    entropy_gradient: bool = False,
) -> Selected:
    """log softmax(hidden · headᵀ / temperature) at the target tokens, and the entropy of that softmax.

    The head is applied in float32 whatever the model's dtype.
    """
    if hidden_TH.shape[0] == 0:
        nothing_T = hidden_TH.sum(dim=1, dtype=torch.float32)
        return Selected(logprobs_T=nothing_T, entropy_T=nothing_T)
    options = (temperature, entropy_gradient)
    parts = [
        checkpoint(_chunk, hidden, head_VH, bias_V, targets, *options, use_reentrant=False)
        for hidden, targets in zip(hidden_TH.split(chunk), targets_T.split(chunk), strict=True)
    ]
    return Selected(logprobs_T=torch.cat([p[0] for p in parts]), entropy_T=torch.cat([p[1] for p in parts]))


def _chunk(
    hidden_TH: torch.Tensor,
    head_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_T: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.autocast(hidden_TH.device.type, enabled=False):
        bias = None if bias_V is None else bias_V.float()
        logits_TV = torch.nn.functional.linear(hidden_TH.float(), head_VH.float(), bias) / temperature
        total_T = logits_TV.logsumexp(dim=1)
        chosen_T = logits_TV.gather(1, targets_T[:, None]).squeeze(1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_T = total_T - (logits_TV.softmax(dim=1) * logits_TV).sum(dim=1)
        return chosen_T - total_T, entropy_T
