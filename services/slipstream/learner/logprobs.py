"""Logprobs of chosen tokens from hidden states, a chunk of positions at a time.

Only [chunk × vocabulary] logits exist at once, forward and backward: each chunk is recomputed in its
backward pass instead of being kept.

Shape suffixes: T positions, H hidden size, V vocabulary.
"""

import torch
from torch.utils.checkpoint import checkpoint


def selected_logprobs(
    hidden_TH: torch.Tensor,
    head_VH: torch.Tensor,
    targets_T: torch.Tensor,
    *,
    bias_V: torch.Tensor | None = None,
    temperature: float = 1.0,
    chunk: int = 1024,
) -> torch.Tensor:
    """log softmax(hidden · headᵀ / temperature) at the target tokens, [T] float32, in nats.

    The head is applied in float32 whatever the model's dtype.
    """
    if hidden_TH.shape[0] == 0:
        return hidden_TH.sum(dim=1, dtype=torch.float32)
    parts = [
        checkpoint(_chunk_logprobs, hidden, head_VH, bias_V, targets, temperature, use_reentrant=False)
        for hidden, targets in zip(hidden_TH.split(chunk), targets_T.split(chunk), strict=True)
    ]
    return torch.cat(parts)


def _chunk_logprobs(
    hidden_TH: torch.Tensor,
    head_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_T: torch.Tensor,
    temperature: float,
) -> torch.Tensor:
    with torch.autocast(hidden_TH.device.type, enabled=False):
        bias = None if bias_V is None else bias_V.float()
        logits_TV = torch.nn.functional.linear(hidden_TH.float(), head_VH.float(), bias) / temperature
        chosen_T = logits_TV.gather(1, targets_T[:, None]).squeeze(1)
        return chosen_T - logits_TV.logsumexp(dim=1)
