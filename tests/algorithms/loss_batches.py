"""Batches for the tests of the loss: ragged batches from a seed, and their packed tensors."""

import math
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from algorithms.loss_reference import Batch, Sequence, Token
from hypothesis import strategies as st
from slipstream.algorithms import Counts, LossSpec, PolicyLoss, TopK, count, policy_loss
from slipstream.algorithms.spec import (
    AGGREGATIONS,
    Aggregation,
    Cispo,
    Dppo,
    Gmpo,
    Gspo,
    GspoToken,
    Ipo,
    Is,
    Objective,
    Pg,
    PpoClip,
    RolloutIs,
    Rspo,
    Sapo,
    Topr,
    Vespo,
)
from torch import Tensor

OBJECTIVES: List[Objective] = [
    Pg(),
    Is(),
    Is(anchor="batch", dual_clip=1.5),
    PpoClip(),
    PpoClip(anchor="batch", clip_low=0.3, clip_high=None),
    PpoClip(clip_low=None, clip_high=0.5),
    PpoClip(dual_clip=1.4),
    Cispo(clip_high=0.5),
    Cispo(anchor="batch", clip_low=0.4, clip_high=0.5),
    Cispo(clip_high=0.5, mask_low=0.2, mask_high=0.3),
    Cispo(anchor="batch", clip_low=0.4, clip_high=None, mask_high=0.1),
    RolloutIs(),
    RolloutIs(anchor="batch", clip_low=0.3, clip_high=None),
    Sapo(),
    Sapo(anchor="batch", tau_pos=3.0, tau_neg=0.5),
    Topr(),
    Topr(anchor="batch"),
    Gspo(clip_low=0.1, clip_high=0.2),
    Gspo(anchor="batch", clip_low=None, clip_high=None, dual_clip=1.1),
    Gspo(),
    GspoToken(clip_low=0.1, clip_high=0.2),
    GspoToken(anchor="batch", dual_clip=1.1),
    Gmpo(),
    Gmpo(anchor="batch", log_clip=0.2),
    Gmpo(log_clip=None),
    Rspo(),
    Rspo(placement="after", log_clip=0.2),
    Rspo(placement="literal_b", gamma_min=0.8),
    Vespo(),
    Vespo(anchor="batch", k_pos=1.0, lambda_neg=1.0),
    Dppo(limit_low=0.05, limit_high=0.03),
    Dppo(divergence="binary_kl", limit_low=0.02, limit_high=0.01, cap=1.2),
    Dppo(divergence="topk_tv", limit_low=0.1, limit_high=0.08, cap=None),
    Dppo(divergence="topk_kl", limit_low=0.03, limit_high=0.02),
    Ipo(limit=0.03),
]
"""Every objective, with both anchors and with bounds that random ratios cross."""

TOP = 3
"""K of the random top-K logprobs."""


def spec_of(objective: Objective, kind: Any = "token_mean", **axes: Any) -> LossSpec:
    """Return a whole loss around an objective."""
    aggregation = Aggregation(kind=kind, max_tokens=9 if kind == "token_sum_norm" else None)
    return LossSpec(objective=objective, aggregation=aggregation, **axes)


def aggregations_of(objective: Objective) -> list[str]:
    """Return the aggregations that may be combined with an objective."""
    return [kind for kind in AGGREGATIONS if kind != "seq_len_weighted" or isinstance(objective, Gspo)]


def distribution(random: Random, size: int) -> list[float]:
    weights = [random.uniform(0.05, 1.0) for _ in range(size)]
    return [math.log(weight / sum(weights)) for weight in weights]


def near(random: Random, logprobs: List[float], drift: float) -> list[float]:
    moved = [math.exp(value + drift * random.gauss(0, 1)) for value in logprobs]
    return [math.log(value / sum(moved)) for value in moved]


def make_token(random: Random, advantage: float, drift: float) -> Token:
    """Return a token of a vocabulary of 6, of which mu's 3 most likely are carried."""
    rollout = distribution(random, 6)
    current, old = near(random, rollout, drift), near(random, rollout, drift)
    own = random.randrange(6)
    top = sorted(range(6), key=lambda index: -rollout[index])[:TOP]
    return Token(
        logprob=current[own],
        rollout=rollout[own],
        old=old[own],
        ref=near(random, rollout, 0.5)[own],
        advantage=advantage,
        trains=random.random() < 0.8,
        staleness=random.randrange(6),
        router_shift=random.uniform(0.5, 1.0),
        entropy=random.uniform(0.0, 2.0),
        selected=random.random() < 0.5,
        top_k=tuple((current[index], rollout[index]) for index in top),
        sampled=top.index(own) if own in top else None,
    )


def make_batch(
    seed: int,
    *,
    sequences: int = 6,
    longest: int = 6,
    sign: float | None = None,
    drift: float = 0.4,
    by_token: bool = False,
) -> Batch:
    """Return ragged sequences; a tenth have no token that trains, a third have one token."""
    random = Random(seed)

    def advantage() -> float:
        value = random.gauss(0, 1)
        return value if sign is None else sign * abs(value)

    batch = []
    for _ in range(sequences):
        length = 1 if random.random() < 0.3 else random.randint(1, longest)
        silent, shared = random.random() < 0.1, advantage()
        tokens = [make_token(random, advantage() if by_token else shared, drift) for _ in range(length)]
        if silent:
            tokens = [replace(token, trains=False) for token in tokens]
        # selection is an input of its own: everything trains unless a test says otherwise
        tokens = [replace(token, selected=True) for token in tokens]
        batch.append(Sequence(tuple(tokens), random.randrange(max(1, sequences // 2))))
    return batch


def batches(**arguments: Any) -> st.SearchStrategy[Batch]:
    """Draw batches of 1 to 200 sequences, small ones mostly."""
    size = st.one_of(st.integers(1, 8), st.integers(1, 200))
    return st.builds(
        lambda seed, sequences, longest: make_batch(seed, sequences=sequences, longest=longest, **arguments),
        st.integers(0, 2**31),
        size,
        st.integers(1, 12),
    )


def change(batch: Batch, edit: Callable[[Token], Token]) -> Batch:
    """Return the batch with every token edited."""
    return [Sequence(tuple(edit(token) for token in sequence.tokens), sequence.group) for sequence in batch]


@dataclass(frozen=True, slots=True)
class Result:
    """What one call gave: L, dL/dl of every token, and the rest."""

    loss: float
    gradient: Tensor
    out: PolicyLoss


def packed(batch: Batch, *, by_token: bool = False) -> dict[str, Tensor]:
    """Return the tensors of a batch, by argument name, in float64; advantages by sequence unless by_token."""
    tokens = [token for sequence in batch for token in sequence.tokens]

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)

    ids = [i for i, sequence in enumerate(batch) for _ in sequence.tokens]
    first = [sequence.tokens[0].advantage for sequence in batch]
    return {
        "logprobs": column("logprob"),
        "rollout_logprobs": column("rollout"),
        "old_logprobs": column("old"),
        "ref_logprobs": column("ref"),
        "advantages": column("advantage") if by_token else torch.tensor(first, dtype=torch.float64),
        "mask": column("trains").long(),
        "sequence_ids": torch.tensor(ids, dtype=torch.long),
        "staleness": column("staleness").long(),
        "group_ids": torch.tensor([sequence.group for sequence in batch], dtype=torch.long),
        "router_shift": column("router_shift"),
    }


def top_k_of(batch: Batch) -> TopK:
    """Return the logprobs of the top K tokens, packed."""
    tokens = [token for sequence in batch for token in sequence.tokens]
    pairs = torch.tensor([token.top_k for token in tokens], dtype=torch.float64)
    sampled = [[token.sampled == k for k in range(len(token.top_k))] for token in tokens]
    return TopK(
        logprobs_TK=pairs[..., 0], rollout_logprobs_TK=pairs[..., 1], sampled_TK=torch.tensor(sampled)
    )


def run(spec: LossSpec, batch: Batch, *, by_token: bool = False, **arguments: Any) -> Result:
    """Call policy_loss on a batch, and go backward."""
    arguments_of_loss: dict[str, Any] = packed(batch, by_token=by_token) | arguments
    if isinstance(spec.objective, Dppo) and spec.objective.needs_top_k and "top_k" not in arguments_of_loss:
        arguments_of_loss["top_k"] = top_k_of(batch)
    logprobs = arguments_of_loss.pop("logprobs").clone().requires_grad_()
    out = policy_loss(spec, logprobs=logprobs, **arguments_of_loss)
    out.loss.backward()
    assert isinstance(logprobs.grad, Tensor)
    return Result(float(out.loss.detach()), logprobs.grad, out)


def counts_of(batch: Batch) -> Counts:
    """Return the counts of a whole batch."""
    tensors = packed(batch)
    return count(tensors["mask"], tensors["sequence_ids"], tensors["group_ids"])


def share(counts: Counts, sequences: List[int]) -> Counts:
    """Return the counts of the whole batch, as a microbatch of the given sequences needs them."""
    assert counts.prompt_tokens_B is not None
    return replace(counts, prompt_tokens_B=counts.prompt_tokens_B[list(sequences)])


def one_token(logprob: float, anchor: float, advantage: float, **more: Any) -> Batch:
    """Return a batch of one token whose anchors are all the same."""
    token = Token(logprob=logprob, rollout=anchor, old=anchor, ref=anchor, advantage=advantage, **more)
    return [Sequence((token,))]
