"""FLOPs that the training of a model needs: the numerator of model FLOPs utilization (MFU).

    FLOPs = f · N · tokens  +  f · H · positions  +  12 · L · W · pairs

    f          6 for a weight that trains (2 forward, 4 backward), 4 for one that does not (below adapters)
    N          weights of the matrices of the layers that a token uses; of experts, the active ones
    tokens     tokens of the rows, prompts included
    H          weights of the output head
    positions  sampled tokens: the head is applied to no others
    L, W       layers; width of the attention (heads · size of a head)
    pairs      pairs of a token and a token it attends to: the sum of 1 + position over the tokens

See PaLM: Scaling Language Modeling with Pathways, arXiv:2204.02311, appendix B. The paper pairs a token with
the whole sequence; here the causal mask leaves half of the pairs. Recomputation (activation checkpointing),
passes without gradient (old and reference logprobs) and a critic do not count. Layers with a sliding window
count as full attention.
"""

from dataclasses import dataclass
from typing import Any

import torch

from slipstream.config.checks import EXPERT_KEYS
from slipstream.learner.policy.model import Policy

TRAINED, FROZEN = 6, 4
ATTENTION = 12
"""FLOPs of a pair for each unit of width: two products forward, and four backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """FLOPs of one forward and backward pass: for each token, sampled token and pair."""

    token: float
    """For each token of a row."""
    position: float
    """In addition, for each sampled token."""
    pair: float
    """For each pair of a token and a token it attends to."""

    def of(self, tokens: float, positions: float, pairs: float) -> float:
        """Return the FLOPs of these numbers of tokens, sampled tokens, and pairs of tokens."""
        return self.token * tokens + self.position * positions + self.pair * pairs


def model_flops(policy: Policy) -> ModelFlops:
    """Return the FLOPs of a policy. If it is sharded over ranks, they are those of the whole model."""
    model = policy.model
    text = model.config.get_text_config()
    head = model.get_output_embeddings().weight
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    share = _active_share(text)
    layers = sum(
        _factor(weight) * weight.numel() * (share if ".experts." in name else 1.0)
        for name, weight in model.named_parameters()
        if weight.ndim > 1 and weight is not head and id(weight) not in tables
    )
    return ModelFlops(
        token=layers,
        position=_factor(head) * head.numel(),
        pair=ATTENTION * text.num_hidden_layers * _attention_width(text),
    )


def _factor(weight: torch.Tensor) -> int:
    return TRAINED if weight.requires_grad else FROZEN


def _attention_width(text: Any) -> int:
    """Return heads times the size of a head; 0 if the configuration of the model does not name them."""
    heads, width = getattr(text, "num_attention_heads", None), getattr(text, "hidden_size", None)
    if not isinstance(heads, int) or not isinstance(width, int):
        return 0
    return heads * (getattr(text, "head_dim", None) or width // heads)


def _active_share(text: Any) -> float:
    """Return the share of a layer's experts that are active at a token; 1 without experts."""
    experts = next((getattr(text, key) for key in EXPERT_KEYS if getattr(text, key, None)), None)
    active = getattr(text, "num_experts_per_tok", None)
    return active / experts if experts and active else 1.0
