"""The parity probe: what the learner computes for a fixed sequence of tokens under the published weights.

A rollout that has loaded these weights compares its own logprobs (slipstream.rollout.parity). The digests of
an update show that the right bytes arrived; the probe shows that the engine computes with them.
"""

import random
from dataclasses import dataclass

import torch

from slipstream.learner.policy.model import Policy

SEED = "parity probe"


@dataclass(frozen=True, slots=True)
class ParityProbe:
    """token_ids: [1 + tokens]. logprobs: [tokens], each given the tokens before it, at temperature 1."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@torch.no_grad()
def take_parity_probe(policy: Policy, tokens: int) -> ParityProbe:
    """Compute the logprobs of `tokens` pseudorandom tokens behind a first one; all ranks must call.

    The tokens are the same in each call.
    """
    vocabulary = policy.model.get_output_embeddings().weight.shape[0]
    chosen = random.Random(SEED)
    token_ids = tuple(chosen.randrange(vocabulary) for _ in range(tokens + 1))
    tokens_R = torch.tensor(token_ids, device=policy.device)
    positions_R = torch.arange(len(token_ids), device=policy.device)
    selected = policy.selected(tokens_R, positions_R, positions_R[:-1], tokens_R[1:], temperature=1.0)
    return ParityProbe(token_ids, tuple(selected.logprobs_T.tolist()))
