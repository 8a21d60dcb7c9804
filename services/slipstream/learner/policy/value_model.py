"""The model of a critic: a linear head, on the policy's hidden states or on a backbone of its own.

Shape suffixes: N positions of a row, R tokens of a row, H hidden size.
"""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import register_fsdp_forward_method

from slipstream.config import CriticConfig, RunConfig
from slipstream.learner.policy import first_rows, heap, sharded_loading
from slipstream.learner.policy.model import Policy, attends_fully, hidden_states
from slipstream.learner.ranks.sharding import shard

ATTENTION: Final = "sdpa"
CHECK_TOKENS = 8
CHECK_TOLERANCE = 1e-3


class ValueModel(torch.nn.Module):
    """A linear head over hidden states of the policy, or of a backbone of its own.

    The head starts at 0: a new critic predicts 0, and has no gradient for the trunk in its first step.
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
        """Return values [N] at some positions of a row, in float32 at least.

        hidden_NH: the policy's hidden states there, for a head without a backbone.
        """
        if self.backbone is not None:
            hidden_NH = hidden_states(self.backbone, tokens_R, positions_R, attention_RR)[at_N]
        assert hidden_NH is not None, "a head reads the policy's hidden states"
        wide = torch.promote_types(hidden_NH.dtype, torch.float32)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            value_N1 = torch.nn.functional.linear(
                hidden_NH.to(wide), self.head.weight.to(wide), self.head.bias.to(wide)
            )
        return value_N1.squeeze(1)

    def hidden_states(self, tokens_R: torch.Tensor, positions_R: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states [R, H] of the backbone."""
        return hidden_states(self.backbone, tokens_R, positions_R, None)


def load_value_model(
    settings: CriticConfig, config: RunConfig, policy: Policy, mesh: DeviceMesh | None = None
) -> ValueModel:
    """Load the value model as it is before the first step, on the policy's device.

    mesh: the ranks over which it is sharded, None for one rank; each reads its own part of a backbone.
    Errors: ValueError for a backbone with another vocabulary than the policy, with missing weights, or in
    which packed sequences attend to each other; OSError for a directory that transformers cannot read.
    """
    if settings.kind == "head":
        head = ValueModel(width=_width(policy.model)).to(policy.device)
        if mesh is not None:
            shard(head, mesh, dtype=policy.dtype)
        return head
    from transformers import AutoConfig

    path = settings.path or config.model.directory()
    described = AutoConfig.from_pretrained(path)
    _check_vocabulary(described, path, policy)
    if config.learner.share_prompts and not attends_fully(described):
        raise ValueError(
            f"learner.critic.path: {path} has not full attention in every layer, which learner.share_prompts "
            "needs; set that to false"
        )
    if mesh is None:
        return _load_whole(path, policy)
    reason = sharded_loading.why_not_in_parts(path, _empty_backbone(described))
    if reason is None:
        return _load_parts(path, described, policy, mesh)
    warnings.warn(f"{path}: every rank loads the whole critic, because {reason}", stacklevel=2)
    module = _load_whole(path, policy)
    shard(module, mesh, dtype=policy.dtype)
    return module


def _load_whole(path: Path, policy: Policy) -> ValueModel:
    from transformers import AutoModel

    backbone, loading = AutoModel.from_pretrained(
        path, dtype=torch.float32, attn_implementation=ATTENTION, output_loading_info=True
    )
    _check_complete(path, loading["missing_keys"])
    backbone.eval()  # eval keeps gradients; dropout would add noise
    module = _around(backbone).to(policy.device)
    _check_packing(module, path, policy.device)
    return module


def _load_parts(path: Path, described: Any, policy: Policy, mesh: DeviceMesh) -> ValueModel:
    """Load the parts like a policy's: one module is checked in float32, then its tensors move to another."""
    checked = _around(_empty_backbone(described))
    with torch.device("meta"):
        module = _around(_empty_backbone(described))
    vocabulary = first_rows.vocabulary_modules(checked.backbone)
    shard(checked, mesh, dtype=torch.float32, outside=torch.float32, apart=vocabulary)
    register_fsdp_forward_method(checked, "hidden_states")
    with heap.returning_freed_memory():
        _check_complete(
            path,
            sharded_loading.read_parts(checked.backbone, path, device=policy.device, dtype=torch.float32),
        )
        with first_rows.first_rows_only(checked.backbone, _empty_backbone(described), mesh):
            _check_packing(checked, path, policy.device)
    shard(module, mesh, dtype=policy.dtype)
    sharded_loading.move_tensors(checked, module, renamed=lambda name: name)
    return module


def _around(backbone: Any) -> ValueModel:
    return ValueModel(width=_width(backbone), backbone=backbone)


def _empty_backbone(described: Any) -> Any:
    from transformers import AutoModel

    return sharded_loading.make_empty(AutoModel, described, dtype=torch.float32, attention=ATTENTION)


def _check_complete(path: Path, missing: Iterable[str]) -> None:
    if missing:
        raise ValueError(f"learner.critic.path: {path} has no {', '.join(sorted(missing)[:5])}")


def _width(model: Any) -> int:
    """Return the hidden size."""
    return int(model.config.get_text_config().hidden_size)


def _vocabulary(described: Any) -> int:
    return int(described.get_text_config().vocab_size)


def _check_vocabulary(described: Any, path: Path, policy: Policy) -> None:
    own, wanted = _vocabulary(described), _vocabulary(policy.model.config)
    if own != wanted:
        raise ValueError(
            f"learner.critic.path: {path} has a vocabulary of {own} tokens, and the policy one of {wanted}; "
            "name a model with the policy's tokenizer"
        )


def _check_packing(module: ValueModel, path: Path, device: torch.device) -> None:
    """Compare the hidden states of a sequence packed after another one with those of the sequence alone."""
    own = torch.arange(
        min(CHECK_TOKENS, module.backbone.get_input_embeddings().weight.shape[0]), device=device
    )
    with torch.no_grad():
        alone_RH, packed_RH = (
            module.hidden_states(tokens, own.repeat(tokens.shape[0] // own.shape[0]))
            for tokens in (own, torch.cat([own.flip(0), own]))
        )
    difference = float((packed_RH[own.shape[0] :] - alone_RH).abs().max())
    if not difference <= CHECK_TOLERANCE * max(1.0, float(alone_RH.abs().max())):
        raise ValueError(
            f"learner.critic.path: {path}: a sequence packed behind another one has other hidden states than "
            "alone; models that carry a state over position 0 are not supported"
        )
