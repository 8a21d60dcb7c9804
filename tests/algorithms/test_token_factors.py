"""With an objective of the sequence's ratio, a factor of one token weighs the gradient of that token only.

Suffixes: _T packed tokens. c is the factor of a token: corrections, over age, top_entropy.
"""

import inspect
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from algorithms import loss_reference as reference
from algorithms.loss_batches import change, make_batch, packed, run, spec_of
from algorithms.loss_reference import Batch
from slipstream.algorithms import LossSpec
from slipstream.algorithms.spec import (
    Gmpo,
    Gspo,
    IcePop,
    M2po,
    Mis,
    Objective,
    Opsm,
    Rspo,
    Tis,
    TopEntropy,
)
from torch import Tensor

OBJECTIVES: list[Objective] = [
    Gspo(anchor="batch", clip_low=0.1, clip_high=0.2),
    Gmpo(anchor="batch"),
    Rspo(),
]
BY_TOKEN: list[dict[str, Any]] = [
    {"corrections": (Tis(cap=1.2),)},
    {"corrections": (Mis(level="token", low=0.8, high=1.2),)},
    {"corrections": (IcePop(low=0.8, high=1.2),)},
    {"corrections": (M2po(threshold=0.01, clip_low=0.1, clip_high=0.1),)},
    {"max_staleness": 2},
    {"top_entropy": TopEntropy(share=0.5)},
]
BY_SEQUENCE: list[dict[str, Any]] = [
    {},
    {"corrections": (Tis(level="sequence"),)},
    {"corrections": (Tis(level="geometric"),)},
    {"corrections": (Opsm(delta=0.1),)},
]


def long_batch() -> Batch:
    """Sequences of up to twelve tokens, every third of which is not selected."""
    position = count()
    batch = make_batch(3, sequences=8, longest=12)
    return change(batch, lambda token: replace(token, selected=next(position) % 3 > 0))


def ours(spec: LossSpec, batch: Batch) -> Tensor:
    selected_T = torch.tensor([token.selected for sequence in batch for token in sequence.tokens])
    return run(spec, batch, **({"selected": selected_T} if spec.top_entropy else {})).gradient


def of_token_form(spec: LossSpec, batch: Batch) -> Tensor:
    """dL/dl of L = - sum of w c J with J_t = g_t pi_t / sg(pi_t), by autograd."""
    logprobs_T = packed(batch)["logprobs"].requires_grad_()
    weights, factors = reference.token_weights(spec.aggregation, batch), reference.constants(spec, batch)
    total, first = torch.zeros((), dtype=torch.float64), 0
    for sequence, weight, factor in zip(batch, weights, factors, strict=True):
        own = [first + i for i, token in enumerate(sequence.tokens) if token.trains]
        first += len(sequence.tokens)
        if own:
            g = reference.weights_g(spec.objective, sequence.trained)
            w = [w for w in weight if w]
            wcg_T = torch.tensor([a * b * c for a, b, c in zip(w, factor, g, strict=True)])
            l_T = logprobs_T[own]
            total = total - (wcg_T * (l_T - l_T.detach()).exp()).sum()
    (slope_T,) = torch.autograd.grad(total, logprobs_T)
    return slope_T


def of_live_ratio(spec: LossSpec, batch: Batch) -> Tensor:
    """dL/dl of L = - sum of w c J with the ratio of the sequence in every J, by finite differences."""
    return torch.tensor(reference.finite_differences(spec, batch), dtype=torch.float64)


@pytest.mark.parametrize("axes", BY_TOKEN, ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_with_factors_by_token_the_gradient_is_that_of_the_token_form(
    objective: Objective, axes: dict[str, Any]
) -> None:
    spec = spec_of(objective, "seq_mean_token_mean", **axes)
    batch = long_batch() if spec.top_entropy else make_batch(3, sequences=8, longest=12)

    gradient_T = ours(spec, batch)

    torch.testing.assert_close(gradient_T, of_token_form(spec, batch))
    live_T = of_live_ratio(spec, batch)
    assert float((gradient_T - live_T).norm() / live_T.norm()) > 0.05


@pytest.mark.parametrize("axes", BY_SEQUENCE, ids=str)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_with_one_factor_a_sequence_both_forms_have_the_same_gradient(
    objective: Objective, axes: dict[str, Any]
) -> None:
    spec, batch = spec_of(objective, "seq_mean_token_mean", **axes), make_batch(3, sequences=8, longest=12)

    gradient_T = ours(spec, batch)

    torch.testing.assert_close(gradient_T, of_token_form(spec, batch))
    torch.testing.assert_close(gradient_T, of_live_ratio(spec, batch), rtol=1e-6, atol=2e-8)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)
def test_the_description_of_the_objective_says_what_such_a_factor_does(objective: Objective) -> None:
    text = " ".join((inspect.getdoc(objective) or "").split())
    assert "over age, top_entropy) weighs the gradient of that token only" in text
