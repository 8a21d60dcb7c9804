"""decoupled_gspo: the band bounds the learner's own updates, and a weight corrects the staleness."""

import math
from typing import Any

import pytest
import torch
from slipstream.algorithms import PolicyLoss, policy_loss
from torch import Tensor

SEQUENCES, LENGTH = 200, 64
MISMATCH = 0.0024
"""Mean squared log ratio of a token at equal weights in bfloat16 (docs/models.md)."""


def loss_and_gradient(
    spec: dict[str, Any], l_T: Tensor, prox_T: Tensor, mu_T: Tensor
) -> tuple[PolicyLoss, Tensor]:
    logprobs = l_T.clone().requires_grad_()
    sign_B = torch.where(torch.arange(SEQUENCES) % 2 == 0, 1.0, -1.0).double()
    out = policy_loss(
        spec,
        logprobs=logprobs,
        old_logprobs=prox_T,
        rollout_logprobs=mu_T,
        advantages=sign_B * torch.linspace(0.5, 1.5, SEQUENCES, dtype=torch.float64),
        mask=torch.ones_like(l_T),
        sequence_ids=torch.arange(SEQUENCES).repeat_interleave(LENGTH),
    )
    out.loss.backward()
    assert logprobs.grad is not None
    return out, logprobs.grad


def noise(size: float) -> Tensor:
    return size * torch.randn(SEQUENCES * LENGTH, generator=GENERATOR, dtype=torch.float64)


GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def seeded() -> None:
    GENERATOR.manual_seed(0)


def cosine(a_T: Tensor, b_T: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a_T, b_T, dim=0))


PLAIN = {
    "objective": {"kind": "pg", "allow_uncorrected": True},
    "aggregation": "seq_mean_token_mean",
}


def test_within_the_band_the_gradient_is_that_of_the_whole_ratio_to_the_rollout() -> None:
    prox_T = noise(0.3) - 4
    l_T, mu_T = prox_T + noise(0.0005), prox_T + noise(0.2)
    out, decoupled_T = loss_and_gradient({"preset": "decoupled_gspo"}, l_T, prox_T, mu_T)
    unclipped = {"preset": "gspo", "objective": {"kind": "gspo", "clip_low": None, "clip_high": None}}
    _, whole_T = loss_and_gradient(unclipped, l_T, prox_T, mu_T)
    assert out.metrics["out_of_band_fraction_low"] == out.metrics["out_of_band_fraction_high"] == 0
    assert float(whole_T.abs().std()) > 0.1 * float(whole_T.abs().mean())
    torch.testing.assert_close(decoupled_T, whole_T)


def test_the_band_is_that_of_the_steps_since_the_batch_began() -> None:
    prox_T, mu_T = noise(0.3) - 4, noise(0.3) - 4
    for step, low, high in ((-0.001, 0.5, 0.0), (0.001, 0.0, 0.5), (0.0001, 0.0, 0.0)):
        out, _ = loss_and_gradient({"preset": "decoupled_gspo"}, prox_T + step, prox_T, mu_T)
        assert (out.metrics["clip_fraction_low"], out.metrics["clip_fraction_high"]) == (low, high)


def test_rounding_alone_costs_gspo_half_of_its_gradient_and_decoupled_gspo_nothing() -> None:
    prox_T = noise(0.3) - 4
    mu_T = prox_T + MISMATCH / 2 + noise(math.sqrt(MISMATCH))
    _, plain_T = loss_and_gradient(PLAIN, prox_T, prox_T, mu_T)
    narrow, narrow_T = loss_and_gradient({"preset": "gspo"}, prox_T, prox_T, mu_T)
    decoupled, decoupled_T = loss_and_gradient({"preset": "decoupled_gspo"}, prox_T, prox_T, mu_T)
    assert 0.4 < narrow.metrics["zero_gradient_fraction"] < 0.6
    assert cosine(narrow_T, plain_T) < 0.8
    assert decoupled.metrics["zero_gradient_fraction"] == 0
    assert cosine(decoupled_T, plain_T) > 0.999
