"""DPPO's divergences over the top tokens against dense distributions over a whole vocabulary."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from algorithms.loss_batches import spec_of
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.algorithms import TopK, policy_loss
from slipstream.algorithms.objectives.divergence import binary_kl, top_k_divergence
from slipstream.algorithms.spec import Dppo
from torch import Tensor

VOCABULARY = 30
SOME = settings(max_examples=60, deadline=None)


@dataclass(frozen=True, slots=True)
class Positions:
    """Both policies over the vocabulary, logprobs [T, V], and what was sampled."""

    pi_TV: Tensor
    mu_TV: Tensor
    sampled_T: Tensor

    def own(self, logprobs_TV: Tensor) -> Tensor:
        """Of the sampled tokens."""
        return logprobs_TV.gather(1, self.sampled_T[:, None]).squeeze(1)

    def top(self, k: int) -> TopK:
        """As a run carries it."""
        rollout_TK, ids_TK = self.mu_TV.topk(k, dim=1)
        return TopK(
            logprobs_TK=self.pi_TV.gather(1, ids_TK),
            rollout_logprobs_TK=rollout_TK,
            sampled_TK=ids_TK == self.sampled_T[:, None],
        )

    def divergence(self, k: int, *, total_variation: bool) -> Tensor:
        return top_k_divergence(
            self.top(k), self.own(self.pi_TV), self.own(self.mu_TV), total_variation=total_variation
        )


def positions(seed: int, *, drift: float = 0.5, tokens: int = 40, dtype: Any = torch.float64) -> Positions:
    generator = torch.Generator().manual_seed(seed)
    mu = 2 * torch.randn(tokens, VOCABULARY, generator=generator, dtype=torch.float64)
    pi = mu + drift * torch.randn(tokens, VOCABULARY, generator=generator, dtype=torch.float64)
    mu_TV, pi_TV = mu.log_softmax(dim=1), pi.log_softmax(dim=1)
    sampled_T = torch.multinomial(mu_TV.exp(), 1, generator=generator).squeeze(1)
    return Positions(pi_TV=pi_TV.to(dtype), mu_TV=mu_TV.to(dtype), sampled_T=sampled_T)


def dense(positions: Positions, k: int, *, total_variation: bool) -> list[float]:
    """The definition: probabilities of the cells of a partition of the vocabulary, token by token."""
    divergences = []
    for pi_V, mu_V, sampled in zip(
        positions.pi_TV.double().exp().tolist(),
        positions.mu_TV.double().exp().tolist(),
        positions.sampled_T.tolist(),
        strict=True,
    ):
        cells = {*sorted(range(VOCABULARY), key=lambda v: -mu_V[v])[:k], sampled}
        others = [v for v in range(VOCABULARY) if v not in cells]
        pairs = [(pi_V[v], mu_V[v]) for v in sorted(cells)]
        pairs += [(sum(pi_V[v] for v in others), sum(mu_V[v] for v in others))] if others else []
        if total_variation:
            divergences.append(sum(abs(p - q) for p, q in pairs) / 2)
        else:
            divergences.append(float(sum(q * torch.tensor(q / p).log().double() for p, q in pairs)))
    return divergences


@SOME
@given(st.integers(0, 2**31), st.integers(1, VOCABULARY), st.booleans())
def test_the_divergence_is_that_of_the_partition_of_the_vocabulary(
    seed: int, k: int, total_variation: bool
) -> None:
    drawn = positions(seed)
    expected = dense(drawn, k, total_variation=total_variation)
    divergence = drawn.divergence(k, total_variation=total_variation)
    assert divergence.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)


@SOME
@given(st.integers(0, 2**31))
def test_the_whole_vocabulary_gives_the_divergence_of_the_distributions(seed: int) -> None:
    drawn = positions(seed)
    variation_T = 0.5 * (drawn.pi_TV.exp() - drawn.mu_TV.exp()).abs().sum(dim=1)
    relative_T = (drawn.mu_TV.exp() * (drawn.mu_TV - drawn.pi_TV)).sum(dim=1)
    torch.testing.assert_close(drawn.divergence(VOCABULARY, total_variation=True), variation_T)
    torch.testing.assert_close(drawn.divergence(VOCABULARY, total_variation=False), relative_T)


@SOME
@given(st.integers(0, 2**31), st.booleans())
def test_more_tokens_never_lower_it_and_the_least_is_the_binary_one(seed: int, total_variation: bool) -> None:
    drawn = positions(seed, drift=1.0)
    p_T, q_T = drawn.own(drawn.pi_TV), drawn.own(drawn.mu_TV)
    before_T = (p_T.exp() - q_T.exp()).abs() if total_variation else binary_kl(p_T, q_T)
    for k in (1, 2, 5, 12, VOCABULARY):
        found_T = drawn.divergence(k, total_variation=total_variation)
        assert bool((found_T >= before_T - 1e-9).all())
        before_T = found_T


@pytest.mark.parametrize("total_variation", [True, False])
def test_single_precision_as_in_a_run_is_right_to_a_rounding(total_variation: bool) -> None:
    drawn = positions(3, dtype=torch.float32, tokens=400)
    for k in (1, 5, 20, VOCABULARY):
        expected = torch.tensor(dense(drawn, k, total_variation=total_variation))
        divergence = drawn.divergence(k, total_variation=total_variation)
        torch.testing.assert_close(divergence, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("total_variation", [True, False])
def test_tokens_that_mu_never_samples_add_what_pi_gives_them(total_variation: bool) -> None:
    # mu = (1/2, 1/2, 0, 0), pi = (1/4, 1/4, 1/4, 1/4), as the emulated engine carries it with K = 3
    drawn = Positions(
        pi_TV=torch.full((1, 4), 0.25).log(),
        mu_TV=torch.tensor([[0.5, 0.5, 0.0, 0.0]]).log(),
        sampled_T=torch.tensor([1]),
    )
    expected = 0.5 if total_variation else 0.6931472  # 1/2 (1/4 + 1/4 + 1/4 + 1/4), log 2
    assert drawn.divergence(3, total_variation=total_variation).tolist() == pytest.approx([expected])


@SOME
@given(st.integers(0, 2**31), st.sampled_from(["topk_tv", "topk_kl"]), st.sampled_from([1, 4, VOCABULARY]))
def test_the_loss_masks_by_the_dense_divergence(seed: int, name: Any, k: int) -> None:
    drawn, limit = positions(seed), 0.1
    generator = torch.Generator().manual_seed(seed)
    A_T = torch.randn(40, generator=generator, dtype=torch.float64)
    pi_T, mu_T = drawn.own(drawn.pi_TV), drawn.own(drawn.mu_TV)
    logprobs = pi_T.clone().requires_grad_()
    policy_loss(
        spec_of(Dppo(divergence=name, top_k=k, limit_low=limit, limit_high=limit, cap=None)),
        logprobs=logprobs,
        rollout_logprobs=mu_T,
        advantages=A_T,
        mask=torch.ones(40),
        sequence_ids=torch.zeros(40, dtype=torch.int64),
        top_k=drawn.top(k),
    ).loss.backward()
    distance_T = torch.tensor(dense(drawn, k, total_variation=name == "topk_tv"))
    dropped_T = (distance_T > limit) & ((pi_T - mu_T) * A_T > 0)
    g_T = (pi_T - mu_T).exp() * A_T * ~dropped_T
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -g_T / 40)
