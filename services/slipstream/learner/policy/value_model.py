"""The model of a critic: a linear head, on the policy's hidden states or on a backbone of its own.

Shape suffixes: N positions of a row, R tokens of a row, H hidden size.
"""

from pathlib import Path
from typing import Any

import torch

from slipstream.config import CriticConfig, RunConfig
from slipstream.learner.policy.model import Policy, attends_fully, hidden_states

CHECK_TOKENS = 8
CHECK_TOLERANCE = 1e-3


class ValueModel(torch.nn.Module):
    """A linear head over hidden states, and the backbone that they come from unless it is the policy's.

    The head starts at 0: a new critic says 0 everywhere, and pulls at no trunk in its first step.
    """

    def __init__(self, *, width: int, backbone: Any = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(
        self,
        hidden_NH: torch.Tensor | None,
        tokens_R: torch.Tensor,
        positions_R: torch.Tensor,
        attention_RR: torch.Tensor | None,
        at_N: torch.Tensor,
    ) -> torch.Tensor:
        """Values [N] at some positions of a row, in float32 at least whatever the dtype of the forward pass;
        `hidden_NH` are the policy's there, for a head without a backbone."""
        if self.backbone is not None:
            hidden_NH = hidden_states(self.backbone, tokens_R, positions_R, attention_RR)[at_N]
        assert hidden_NH is not None, "a head reads the policy's hidden states"
        wide = torch.promote_types(hidden_NH.dtype, torch.float32)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            value_N1 = torch.nn.functional.linear(
                hidden_NH.to(wide), self.head.weight.to(wide), self.head.bias.to(wide)
            )
        return value_N1.squeeze(1)


def load_value_model(settings: CriticConfig, config: RunConfig, policy: Policy) -> ValueModel:
    """The value model as it is before the first step, on the policy's device.

    Errors: ValueError for a backbone that has another vocabulary than the policy, or on which packed
    sequences see each other; OSError for a directory that transformers cannot read.
    """
    if settings.kind == "head":
        return ValueModel(width=_width(policy.model)).to(policy.device)
    from transformers import AutoModel

    path = settings.path or config.model.directory()
    backbone = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    backbone.to(policy.device).eval()  # gradients flow all the same, and dropout would be noise
    _check_vocabulary(backbone, path, policy)
    if config.learner.share_prompts and not attends_fully(backbone.config):
        raise ValueError(
            f"learner.critic.path: {path} has not full attention in every layer, which learner.share_prompts "
            "needs; set that to false"
        )
    _check_packing(backbone, path, policy.device)
    return ValueModel(width=_width(backbone), backbone=backbone).to(policy.device)


def _width(model: Any) -> int:
    """Hidden size."""
    return int(model.config.get_text_config().hidden_size)


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config().vocab_size)


def _check_vocabulary(backbone: Any, path: Path, policy: Policy) -> None:
    own, wanted = _vocabulary(backbone), _vocabulary(policy.model)
    if own != wanted:
        raise ValueError(
            f"learner.critic.path: {path} has a vocabulary of {own} tokens, and the policy one of {wanted}; "
            "name a model with the policy's tokenizer"
        )


def _check_packing(backbone: Any, path: Path, device: torch.device) -> None:
    """Compare the hidden states of a sequence that is packed behind another one with those of it alone."""
    own = torch.arange(min(CHECK_TOKENS, _vocabulary(backbone)), device=device)
    with torch.no_grad():
        alone_RH, packed_RH = (
            hidden_states(
                backbone,
                tokens,
                own.repeat(tokens.shape[0] // own.shape[0]),
                None,
            )
            for tokens in (own, torch.cat([own.flip(0), own]))
        )
    difference = float((packed_RH[own.shape[0] :] - alone_RH).abs().max())
    if not difference <= CHECK_TOLERANCE * max(1.0, float(alone_RH.abs().max())):
        raise ValueError(
            f"learner.critic.path: {path}: a sequence packed behind another one has other hidden states than "
            "alone; models that carry a state over position 0 are not supported"
        )
