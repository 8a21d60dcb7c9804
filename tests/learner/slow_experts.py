"""A slow mixture of experts as a reference, computed token by token and expert by expert."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from slipstream.learner.batches.batch import TrainingSequence, sampled_tokens
from slipstream.learner.batches.rows import Row, make_row
from slipstream.learner.policy.logprobs import Selected
from slipstream.learner.policy.model import UNWATCHED, Policy
from slipstream.learner.policy.routing import Watch

Choice = Callable[[int, torch.Tensor], list[int]]
"""Experts of a token: its place in the row and its router probabilities [E] in, ids out."""


class SlowExperts(torch.nn.Module):
    """The block of a Qwen3-MoE layer in plain loops. `seen`: the router's probabilities [E] by token."""

    def __init__(self, block: Any, choice: Choice) -> None:
        super().__init__()
        self.block = block
        self.choice = choice
        self.seen: list[torch.Tensor] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.stack([self._token(place, x) for place, x in enumerate(hidden[0])])[None]

    def _token(self, place: int, x: torch.Tensor) -> torch.Tensor:
        probabilities = torch.softmax(self.block.gate.weight @ x, dim=0)
        self.seen.append(probabilities.detach())
        chosen = self.choice(place, probabilities)
        total = sum(probabilities[expert] for expert in chosen)
        return sum(probabilities[e] / total * self._expert(e, x) for e in chosen)  # type: ignore[return-value]

    def _expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        gate, up = (self.block.experts.gate_up_proj[expert] @ x).chunk(2)
        return self.block.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)


def top(count: int) -> Choice:
    """The router's own choice."""
    return lambda place, probabilities: sorted(range(len(probabilities)), key=lambda e: -probabilities[e])[
        :count
    ]


def slowly(policy: Policy, choices: Sequence[Choice]) -> tuple[Policy, list[SlowExperts]]:
    """The same policy with every block computed slowly, and those blocks; one choice for each layer."""
    model = copy.deepcopy(policy.model)
    blocks = []
    for layer, choice in zip(model.model.layers, choices, strict=True):
        layer.mlp = SlowExperts(layer.mlp, choice)
        blocks.append(layer.mlp)
    return Policy(model, source=policy.source, device=policy.device, dtype=policy.dtype), blocks


def row_of(sequences: Sequence[TrainingSequence], *, share_prompts: bool = False) -> Row:
    return make_row(sequences, sampled_tokens(sequences), torch.device("cpu"), share_prompts=share_prompts)


def run(policy: Policy, row: Row, watch: Watch = UNWATCHED) -> Selected:
    """The forward pass of a row."""
    return policy.selected(
        row.tokens_R,
        row.positions_R,
        row.predictors_T,
        row.targets_T,
        temperature=1.0,
        chunk=64,
        attention_RR=row.attention_RR,
        watch=watch,
    )
